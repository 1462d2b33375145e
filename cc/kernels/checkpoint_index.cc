#include "cc/kernels/checkpoint_index.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cc/kernels/disk_file.h"
#include "tensorflow/core/framework/versions.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/platform/byte_order.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace tfembed {
namespace {

using ::tensorflow::BundleHeaderProto;

// 1,000 bytes an entry are a million entries; a table of a terabyte has
// 300,000.
constexpr int64_t kMostBytes = int64_t{1} << 30;
// For one entry: the slices of a tensor of a terabyte need half as much.
constexpr size_t kMostTextBytes = 2 << 20;
// Names are stored as what differs from the name before. Whole they may take
// the file's bytes and these.
constexpr size_t kMoreNameBytes = 32 << 20;

// A file is data blocks, an index block that has the place of each, and this:
// two handles, zeros, a number.
constexpr size_t kFooterBytes = 48;
constexpr uint64_t kMagic = 0xdb4775248b80fb57u;
// Behind each block: whether it is compressed, and a checksum.
constexpr size_t kTrailerBytes = 5;

absl::Status BadIndex(absl::string_view what) {
  return absl::DataLossError(what);
}

uint32_t Fixed32(const char* from) {
  uint32_t number = 0;
  for (int i = 3; i >= 0; --i) {
    number = number << 8 | static_cast<uint8_t>(from[i]);
  }
  return number;
}

bool TakeVarint(absl::string_view* text, uint64_t* number) {
  *number = 0;
  for (size_t i = 0; i < text->size() && i < 10; ++i) {
    const auto byte = static_cast<uint8_t>((*text)[i]);
    *number |= uint64_t{byte & 0x7fu} << (7 * i);
    if (byte < 0x80) {
      text->remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

// Goes through a block: entries, each with what its name shares with the one
// before it, then the places of those that share nothing, and their number.
class BlockEntries {
 public:
  explicit BlockEntries(absl::string_view block) : rest_(block) {
    constexpr size_t kNumber = sizeof(uint32_t);
    const uint32_t n = block.size() < 2 * kNumber
                           ? 0
                           : Fixed32(block.data() + block.size() - kNumber);
    is_good_ = n > 0 && n <= block.size() / kNumber - 1;
    if (!is_good_) return;
    rest_.remove_suffix(kNumber * (size_t{n} + 1));
    begin_ = rest_.data();
    whole_names_ = block.substr(rest_.size(), kNumber * n);
  }

  // False at the end, and where the block is damaged: is_good tells.
  bool Next() {
    if (!is_good_ || !CheckWholeName()) return false;
    if (rest_.empty()) return false;
    uint64_t shared, more, text_bytes;
    if (!TakeVarint(&rest_, &shared) || !TakeVarint(&rest_, &more) ||
        !TakeVarint(&rest_, &text_bytes) || shared > name_.size() ||
        (is_whole_ && shared > 0) || more > rest_.size() ||
        text_bytes > rest_.size() - more) {
      is_good_ = false;
      return false;
    }
    name_.resize(shared);
    name_.append(rest_.data(), more);
    text_ = rest_.substr(more, text_bytes);
    rest_.remove_prefix(more + text_bytes);
    return true;
  }

  bool is_good() const { return is_good_; }
  absl::string_view name() const { return name_; }
  absl::string_view text() const { return text_; }

 private:
  // Sets is_whole_. The places must be those of entries, in their order.
  bool CheckWholeName() {
    const auto at = static_cast<size_t>(rest_.data() - begin_);
    const bool is_end = rest_.empty() && at > 0;
    is_whole_ =
        !is_end && !whole_names_.empty() && Fixed32(whole_names_.data()) == at;
    if (is_whole_) whole_names_.remove_prefix(sizeof(uint32_t));
    const bool has_begun = at > 0 || is_whole_;
    is_good_ = has_begun && (!rest_.empty() || whole_names_.empty());
    return is_good_;
  }

  bool is_good_ = true;
  bool is_whole_ = false;
  const char* begin_ = nullptr;
  absl::string_view rest_;
  absl::string_view whole_names_;
  std::string name_;
  absl::string_view text_;
};

}  // namespace

std::string Printable(absl::string_view text) {
  constexpr size_t kMost = 200;
  const std::string printable = absl::CHexEscape(text.substr(0, kMost));
  return text.size() > kMost ? absl::StrCat(printable, "...") : printable;
}

bool IsUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<uint8_t>(text[i]);
    const size_t more = first < 0x80                     ? 0
                        : first >= 0xc2 && first <= 0xdf ? 1
                        : first >= 0xe0 && first <= 0xef ? 2
                        : first >= 0xf0 && first <= 0xf4 ? 3
                                                         : text.size();
    if (more >= text.size() - i) return false;
    for (size_t k = 1; k <= more; ++k) {
      const auto byte = static_cast<uint8_t>(text[i + k]);
      // After some first bytes fewer can follow: the others were encoded
      // too long, are halves of pairs, or beyond the last character.
      const int lowest = k > 1           ? 0x80
                         : first == 0xe0 ? 0xa0
                         : first == 0xf0 ? 0x90
                                         : 0x80;
      const int highest = k > 1           ? 0xbf
                          : first == 0xed ? 0x9f
                          : first == 0xf4 ? 0x8f
                                          : 0xbf;
      if (byte < lowest || byte > highest) return false;
    }
    i += more;
  }
  return true;
}

absl::Status CheckpointIndex::Read(tensorflow::Env* env,
                                   const std::string& prefix) {
  const std::string path = tensorflow::MetaFilename(prefix);
  absl::StatusOr<std::string> file = ReadRegularFile(env, path, kMostBytes);
  if (!file.ok()) return file.status();
  file_ = *std::move(file);
  const absl::Status status = Parse();
  if (status.ok() || !absl::IsDataLoss(status)) return status;
  return BadIndex(absl::StrCat(
      "'", path, "' is damaged or cut off: ", status.message(), "."));
}

absl::Status CheckpointIndex::Parse() {
  if (file_.size() < kFooterBytes)
    return BadIndex("it is too short for an index");
  absl::string_view footer(file_);
  footer.remove_prefix(file_.size() - kFooterBytes);
  const char* const magic = footer.data() + kFooterBytes - sizeof(kMagic);
  if ((uint64_t{Fixed32(magic + 4)} << 32 | Fixed32(magic)) != kMagic) {
    return BadIndex("it does not end as an index");
  }
  Handle unused, handle;
  absl::string_view block;
  if (!TakeHandle(&footer, &unused) || !TakeHandle(&footer, &handle)) {
    return BadIndex("its end cannot be read");
  }
  TF_RETURN_IF_ERROR(BlockOf(handle, &block));
  BlockEntries blocks(block);
  std::string last_name;
  while (blocks.Next()) {
    absl::string_view place = blocks.text();
    if (!TakeHandle(&place, &handle))
      return BadIndex("it has a block without place");
    TF_RETURN_IF_ERROR(BlockOf(handle, &block));
    TF_RETURN_IF_ERROR(AddBlock(block, blocks.name()));
  }
  if (!blocks.is_good()) return BadIndex("its list of blocks cannot be read");
  if (!has_header_) return BadIndex("it has no header");
  return absl::OkStatus();
}

bool CheckpointIndex::TakeHandle(absl::string_view* text, Handle* handle) {
  return TakeVarint(text, &handle->offset) && TakeVarint(text, &handle->bytes);
}

absl::Status CheckpointIndex::BlockOf(const Handle& handle,
                                      absl::string_view* block) const {
  const uint64_t all = file_.size() - kFooterBytes;
  if (handle.bytes > all || all - handle.bytes < kTrailerBytes ||
      handle.offset > all - handle.bytes - kTrailerBytes) {
    return BadIndex(absl::StrCat("a block of ", handle.bytes, " bytes at ",
                                 handle.offset, " is not in its ",
                                 file_.size()));
  }
  const char* const at = file_.data() + handle.offset;
  const uint32_t checksum = tensorflow::crc32c::Value(at, handle.bytes + 1);
  const uint32_t saved =
      tensorflow::crc32c::Unmask(Fixed32(at + handle.bytes + 1));
  if (checksum != saved) {
    return BadIndex(absl::StrCat("a block has checksum ", checksum,
                                 " in place of ", saved));
  }
  if (at[handle.bytes] != 0) {
    return BadIndex("a block is compressed, as none of TensorFlow's is");
  }
  *block = {at, handle.bytes};
  return absl::OkStatus();
}

absl::Status CheckpointIndex::AddBlock(absl::string_view block,
                                       absl::string_view last_name) {
  BlockEntries entries(block);
  while (entries.Next()) {
    TF_RETURN_IF_ERROR(AddEntry(entries.name(), entries.text()));
  }
  if (!entries.is_good()) return BadIndex("a block cannot be read");
  if (!entries_.empty() && name(size() - 1) > last_name) {
    return BadIndex("its list of blocks is not that of its entries");
  }
  return absl::OkStatus();
}

absl::Status CheckpointIndex::AddEntry(absl::string_view name,
                                       absl::string_view text) {
  if (text.size() > kMostTextBytes) {
    return BadIndex(absl::StrCat("its entry '", Printable(name), "' has ",
                                 text.size(), " bytes; at most ",
                                 kMostTextBytes, " are read"));
  }
  if (!has_header_) {
    if (!name.empty()) return BadIndex("it has no header");
    has_header_ = true;
    return ReadHeader(text);
  }
  if (name.empty() || (!entries_.empty() && this->name(size() - 1) >= name)) {
    return BadIndex(
        absl::StrCat("its entry '", Printable(name), "' is out of order"));
  }
  if (name.size() > file_.size() + kMoreNameBytes - names_.size()) {
    return BadIndex("its names are too long");
  }
  // All fit: both are less than the most bytes of a file, and those.
  entries_.push_back({static_cast<uint32_t>(names_.size()),
                      static_cast<uint32_t>(name.size()),
                      static_cast<uint32_t>(text.data() - file_.data()),
                      static_cast<uint32_t>(text.size())});
  names_.append(name.data(), name.size());
  return absl::OkStatus();
}

absl::Status CheckpointIndex::ReadHeader(absl::string_view text) {
  BundleHeaderProto header;
  if (!header.ParseFromArray(text.data(), static_cast<int>(text.size()))) {
    return BadIndex("its header cannot be read");
  }
  num_files_ = header.num_shards();
  if (num_files_ <= 0) {
    return BadIndex(
        absl::StrCat("it says that there are ", num_files_, " files"));
  }
  is_of_other_byte_order_ =
      header.endianness() != (tensorflow::port::kLittleEndian
                                  ? BundleHeaderProto::LITTLE
                                  : BundleHeaderProto::BIG);
  const absl::Status status = tensorflow::CheckVersions(
      header.version(), tensorflow::kTensorBundleVersion,
      tensorflow::kTensorBundleMinProducer, "Checkpoint", "checkpoint");
  if (status.ok()) return status;
  return absl::InvalidArgumentError(status.message());
}

absl::string_view CheckpointIndex::name(int64_t i) const {
  return absl::string_view(names_).substr(entries_[i].name,
                                          entries_[i].name_bytes);
}

absl::string_view CheckpointIndex::text(int64_t i) const {
  return absl::string_view(file_).substr(entries_[i].text,
                                         entries_[i].text_bytes);
}

std::optional<int64_t> CheckpointIndex::Find(absl::string_view name) const {
  int64_t begin = 0, end = size();
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (this->name(middle) < name) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  if (begin == size() || this->name(begin) != name) return std::nullopt;
  return begin;
}

}  // namespace tfembed
