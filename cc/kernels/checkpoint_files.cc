#include "cc/kernels/checkpoint_files.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc/kernels/disk_file.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/lib/hash/crc32c.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"
#include "tensorflow/core/util/saved_tensor_slice_util.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"

namespace tfembed {
namespace {

namespace crc32c = ::tensorflow::crc32c;

using ::tensorflow::BundleEntryProto;
using ::tensorflow::DT_STRING;
using ::tensorflow::DT_VARIANT;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::TensorSliceProto;
using ::tensorflow::tstring;
using ::tensorflow::io::InputBuffer;

constexpr int64_t kBlockBytes = 256 << 10;
constexpr int64_t kChecksumBytes = sizeof(uint32_t);
// Parts that are not of whole rows are compared pair by pair.
constexpr size_t kMostPieces = 4096;

absl::Status Bad(absl::string_view what) { return absl::DataLossError(what); }

absl::Status Damaged(absl::string_view file, absl::string_view what) {
  return Bad(absl::StrCat("'", file, "' is damaged or cut off: ", what, "."));
}

absl::Status DamagedTensor(absl::string_view file, absl::string_view tensor,
                           absl::string_view what) {
  return Damaged(file,
                 absl::StrCat("tensor '", Printable(tensor), "': ", what));
}

// Whether an error is one of the two above, which begin with the file.
bool NamesFile(const absl::Status& status) {
  return absl::StartsWith(status.message(), "'");
}

absl::Status CompareChecksums(uint32_t found, uint32_t saved) {
  if (found == crc32c::Unmask(saved)) return absl::OkStatus();
  return Bad(
      absl::StrCat("checksum ", found, " in place of ", crc32c::Unmask(saved)));
}

template <typename T>
uint32_t ExtendByNumber(uint32_t checksum, T number) {
  return crc32c::Extend(checksum, reinterpret_cast<const char*>(&number),
                        sizeof(number));
}

// One entry's bytes, from their first on.
class EntryInput {
 public:
  EntryInput(tensorflow::RandomAccessFile* file, const BundleEntryProto& entry)
      : input_(file, std::min(kBlockBytes, entry.size() + 1)),
        end_(entry.offset() + entry.size()),
        status_(input_.Seek(entry.offset())) {}

  const absl::Status& status() const { return status_; }
  int64_t left() const { return end_ - input_.Tell(); }

  absl::Status ReadLength(uint64_t* length) {
    tensorflow::uint64 number = 0;
    const absl::Status status = input_.ReadVarint64(&number);
    *length = number;
    if (!status.ok() && !IsDamage(status)) return status;
    return status.ok() && left() >= 0 ? absl::OkStatus()
                                      : Bad("its lengths do not end");
  }

  absl::Status Read(int64_t n, void* bytes) {
    if (n > left()) return Bad("it ends too early");
    size_t read = 0;
    const absl::Status status =
        input_.ReadNBytes(n, static_cast<char*>(bytes), &read);
    return absl::IsOutOfRange(status) ? Bad(status.message()) : status;
  }

  // Extends the checksum by the next n bytes.
  absl::Status Sum(int64_t n, uint32_t* checksum) {
    block_.resize(std::min(n, kBlockBytes));
    while (n > 0) {
      const int64_t next = std::min(n, kBlockBytes);
      TF_RETURN_IF_ERROR(Read(next, block_.data()));
      *checksum = crc32c::Extend(*checksum, block_.data(), next);
      n -= next;
    }
    return absl::OkStatus();
  }

 private:
  InputBuffer input_;
  const int64_t end_;
  const absl::Status status_;
  std::vector<char> block_;
};

bool Overlap(const SavedTensor::Part& a, const SavedTensor::Part& b) {
  for (size_t d = 0; d < a.starts.size(); ++d) {
    if (a.starts[d] + a.lengths[d] <= b.starts[d] ||
        b.starts[d] + b.lengths[d] <= a.starts[d]) {
      return false;
    }
  }
  return true;
}

int64_t CountElements(const SavedTensor::Part& part) {
  int64_t elements = 1;
  for (int64_t length : part.lengths) elements *= length;
  return elements;
}

// The extents of one slice. A dimension without length is there as a whole.
absl::Status FindExtents(const TensorSliceProto& slice,
                         const TensorShape& shape, SavedTensor::Part* part) {
  if (slice.extent_size() != shape.dims()) {
    return Bad(absl::StrCat("a slice has ", slice.extent_size(),
                            " dimensions; the tensor has ", shape.dims()));
  }
  for (int d = 0; d < shape.dims(); ++d) {
    const auto& extent = slice.extent(d);
    const int64_t size = shape.dim_size(d);
    const bool has_length = tensorflow::TensorSlice::HasExtentLength(extent);
    const int64_t length = has_length ? extent.length() : size;
    if (extent.start() < 0 || extent.start() > size || length < 0 ||
        length > size - extent.start()) {
      return Bad(absl::StrCat("a slice has ", length, " of ", size, " from ",
                              extent.start(), " on"));
    }
    part->starts.push_back(extent.start());
    part->lengths.push_back(length);
  }
  return absl::OkStatus();
}

// Sorts parts of whole rows, and finds the rows at which they end.
absl::Status CheckRows(SavedTensor* saved) {
  std::sort(saved->parts.begin(), saved->parts.end(),
            [](const auto& a, const auto& b) { return a.starts < b.starts; });
  saved->rows.assign(1, 0);
  for (const SavedTensor::Part& part : saved->parts) {
    if (part.starts[0] != saved->rows.back()) {
      return Bad(absl::StrCat("a slice begins at row ", part.starts[0],
                              " where the one before ends at row ",
                              saved->rows.back()));
    }
    saved->rows.push_back(part.starts[0] + part.lengths[0]);
  }
  const int64_t n = saved->shape.dim_size(0);
  if (saved->rows.back() == n) return absl::OkStatus();
  return Bad(
      absl::StrCat("its slices end at row ", saved->rows.back(), " of ", n));
}

absl::Status CheckPieces(const SavedTensor& saved) {
  const auto& parts = saved.parts;
  if (parts.size() > kMostPieces) {
    return Bad(absl::StrCat("it has ", parts.size(),
                            " slices of parts of rows; at most ", kMostPieces,
                            " are read"));
  }
  int64_t elements = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (Overlap(parts[i], parts[j])) return Bad("its slices overlap");
    }
    elements += CountElements(parts[i]);
  }
  if (elements == saved.shape.num_elements()) return absl::OkStatus();
  return Bad(absl::StrCat("its slices have ", elements, " of ",
                          saved.shape.num_elements(), " elements"));
}

absl::Status CheckCover(SavedTensor* saved) {
  if (saved->shape.num_elements() == 0) {
    if (saved->shape.dims() > 0) saved->rows = {0, saved->shape.dim_size(0)};
    return absl::OkStatus();
  }
  const auto is_of_rows = [saved](const SavedTensor::Part& part) {
    for (int d = 1; d < saved->shape.dims(); ++d) {
      if (part.lengths[d] != saved->shape.dim_size(d)) return false;
    }
    return true;
  };
  if (saved->shape.dims() > 0 &&
      std::all_of(saved->parts.begin(), saved->parts.end(), is_of_rows)) {
    return CheckRows(saved);
  }
  return CheckPieces(*saved);
}

// Copies a part to its place, run by run of the last dimension.
void CopyPart(const Tensor& from, const SavedTensor::Part& part, Tensor* to) {
  const size_t rank = part.lengths.size();
  const int64_t run = part.lengths.back();
  const int64_t size =
      static_cast<int64_t>(from.TotalBytes()) / from.NumElements();
  std::vector<int64_t> at(rank);
  for (int64_t done = 0; done < from.NumElements(); done += run) {
    int64_t place = 0;
    for (size_t d = 0; d < rank; ++d) {
      place = place * to->dim_size(d) + part.starts[d] + at[d];
    }
    if (from.dtype() == DT_STRING) {
      const tstring* const texts = from.flat<tstring>().data() + done;
      std::copy_n(texts, run, to->flat<tstring>().data() + place);
    } else {
      std::memcpy(static_cast<char*>(to->data()) + place * size,
                  static_cast<const char*>(from.data()) + done * size,
                  run * size);
    }
    for (size_t d = rank - 1; d-- > 0;) {
      if (++at[d] < part.lengths[d]) break;
      at[d] = 0;
    }
  }
}

}  // namespace

bool IsDamage(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      return false;
    default:
      return true;
  }
}

absl::Status CheckpointFiles::Parse(int64_t i, BundleEntryProto* entry) const {
  const absl::string_view text = index_.text(i);
  if (entry->ParseFromArray(text.data(), static_cast<int>(text.size()))) {
    return absl::OkStatus();
  }
  return Damaged(tensorflow::MetaFilename(prefix_),
                 absl::StrCat("its entry '", Printable(index_.name(i)),
                              "' cannot be read"));
}

std::string CheckpointFiles::PathOf(int64_t i) const {
  BundleEntryProto entry;
  if (!Parse(i, &entry).ok() || entry.shard_id() < 0 ||
      entry.shard_id() >= index_.num_files()) {
    return "";
  }
  return tensorflow::DataFilename(prefix_, entry.shard_id(),
                                  index_.num_files());
}

absl::StatusOr<SavedTensor> CheckpointFiles::Find(absl::string_view tensor) {
  const std::optional<int64_t> entry = index_.Find(tensor);
  if (entry.has_value()) return Check(*entry);
  return absl::NotFoundError(absl::StrCat("there is no tensor '", tensor,
                                          "' in checkpoint '", prefix_, "'"));
}

absl::StatusOr<SavedTensor> CheckpointFiles::Check(int64_t i) {
  BundleEntryProto entry;
  TF_RETURN_IF_ERROR(Parse(i, &entry));
  SavedTensor saved;
  absl::Status status;
  if (entry.slices_size() == 0) {
    status = CheckStored(i, entry, &saved);
  } else {
    status = CheckSlices(i, entry, &saved);
  }
  if (status.ok()) return saved;
  if (!absl::IsDataLoss(status) || NamesFile(status)) return status;
  return DamagedTensor(tensorflow::MetaFilename(prefix_), index_.name(i),
                       status.message());
}

CheckpointFiles::DataFile* CheckpointFiles::FileOf(int32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [found, is_new] = files_.try_emplace(number);
  DataFile& file = found->second;
  if (!is_new) return &file;
  file.path = tensorflow::DataFilename(prefix_, number, index_.num_files());
  const absl::StatusOr<int64_t> bytes = RegularFileSize(env_, file.path);
  file.status = bytes.status();
  if (!bytes.ok()) return &file;
  file.bytes = *bytes;
  file.status = env_->NewRandomAccessFile(file.path, &file.file);
  return &file;
}

absl::Status CheckpointFiles::CheckMemoryOf(int64_t num_strings) {
  constexpr int64_t kFree = 64 << 20, kTimes = 4;
  constexpr auto kEach = static_cast<int64_t>(sizeof(tstring));
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [number, file] : files_) bytes += file.bytes;
  if (num_strings <= (kFree + kTimes * bytes) / kEach) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      num_strings, " strings take ", kEach, " bytes each, more than files of ",
      bytes, " bytes may: 64 MB and four times their size"));
}

absl::Status CheckpointFiles::CheckPlace(int64_t i,
                                         const BundleEntryProto& entry) {
  if (entry.shard_id() < 0 || entry.shard_id() >= index_.num_files()) {
    return Bad(absl::StrCat("it is in file ", entry.shard_id(), " of ",
                            index_.num_files()));
  }
  DataFile* const file = FileOf(entry.shard_id());
  if (!file->status.ok()) return file->status;
  const int64_t offset = entry.offset(), size = entry.size();
  if (offset < 0 || size < 0 || size > file->bytes ||
      offset > file->bytes - size) {
    return DamagedTensor(file->path, index_.name(i),
                         absl::StrCat("it has ", size, " bytes at ", offset,
                                      ", and the file has ", file->bytes));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  is_claimed_.resize(index_.size());
  if (is_claimed_[i]) return absl::OkStatus();
  is_claimed_[i] = true;
  if (size > file->bytes - file->claimed) {
    return Bad(absl::StrCat("it has bytes of '", file->path,
                            "' that other tensors have"));
  }
  file->claimed += size;
  return absl::OkStatus();
}

absl::Status CheckpointFiles::CheckStored(int64_t i,
                                          const BundleEntryProto& entry,
                                          SavedTensor* saved) {
  const bool has_parts =
      entry.dtype() == DT_STRING || entry.dtype() == DT_VARIANT;
  if (!has_parts && !tensorflow::DataTypeCanUseMemcpy(entry.dtype())) {
    return Bad(absl::StrCat("its dtype is number ",
                            static_cast<int>(entry.dtype()),
                            ", which no saved tensor has"));
  }
  const absl::Status is_shape =
      TensorShape::BuildTensorShape(entry.shape(), &saved->shape);
  if (!is_shape.ok()) return Bad(is_shape.message());
  TF_RETURN_IF_ERROR(CheckPlace(i, entry));
  const int64_t n = saved->shape.num_elements(), bytes = entry.size();
  const int64_t each = tensorflow::DataTypeSize(entry.dtype());
  // Each string has a byte of length; each object that, and a checksum.
  const bool fits = entry.dtype() == DT_VARIANT
                        ? n <= bytes / (1 + kChecksumBytes)
                    : has_parts ? n == 0 || n <= bytes - kChecksumBytes
                    : each == 0 ? n <= bytes
                                : n <= bytes / each && n * each == bytes;
  if (!fits) {
    return Bad(
        absl::StrCat("its ", n, " elements cannot have ", bytes, " bytes"));
  }
  saved->dtype = entry.dtype();
  saved->bytes = bytes;
  SavedTensor::Part whole;
  for (const auto& dim : saved->shape) {
    whole.starts.push_back(0);
    whole.lengths.push_back(dim.size);
  }
  if (!whole.lengths.empty()) saved->rows = {0, whole.lengths[0]};
  whole.entry = i;
  saved->parts.push_back(std::move(whole));
  if (entry.dtype() != DT_STRING) return absl::OkStatus();
  const absl::Status status =
      ReadStrings(entry, n, /*with_bytes=*/false, nullptr);
  if (!absl::IsDataLoss(status)) return status;
  return DamagedTensor(FileOf(entry.shard_id())->path, index_.name(i),
                       status.message());
}

absl::Status CheckpointFiles::CheckSlices(int64_t i,
                                          const BundleEntryProto& entry,
                                          SavedTensor* saved) {
  const absl::Status is_shape =
      TensorShape::BuildTensorShape(entry.shape(), &saved->shape);
  if (!is_shape.ok()) return Bad(is_shape.message());
  saved->dtype = entry.dtype();
  const std::string name(index_.name(i));
  for (const TensorSliceProto& slice : entry.slices()) {
    SavedTensor::Part part;
    TF_RETURN_IF_ERROR(FindExtents(slice, saved->shape, &part));
    const std::optional<int64_t> stored =
        index_.Find(tensorflow::checkpoint::EncodeTensorNameSlice(
            name, tensorflow::TensorSlice(slice)));
    if (!stored.has_value()) return Bad("a slice of it is missing");
    BundleEntryProto stored_entry;
    TF_RETURN_IF_ERROR(Parse(*stored, &stored_entry));
    if (stored_entry.slices_size() > 0 ||
        stored_entry.dtype() != entry.dtype()) {
      return Bad("a slice of it is of another kind");
    }
    SavedTensor own;
    TF_RETURN_IF_ERROR(CheckStored(*stored, stored_entry, &own));
    if (own.parts[0].lengths != part.lengths) {
      return Bad("a slice of it has another shape");
    }
    saved->bytes += own.bytes;
    part.entry = *stored;
    if (CountElements(part) > 0) saved->parts.push_back(std::move(part));
  }
  return CheckCover(saved);
}

absl::Status CheckpointFiles::ReadStrings(const BundleEntryProto& entry,
                                          int64_t n, bool with_bytes,
                                          tstring* strings) {
  if (entry.size() == 0) return CompareChecksums(0, entry.crc32c());
  EntryInput input(FileOf(entry.shard_id())->file.get(), entry);
  TF_RETURN_IF_ERROR(input.status());
  const bool swap = index_.is_of_other_byte_order();
  uint32_t checksum = 0;
  int64_t bytes = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint64_t length;
    TF_RETURN_IF_ERROR(input.ReadLength(&length));
    if (length > static_cast<uint64_t>(entry.size() - bytes)) {
      return Bad(absl::StrCat("it has a string of ", length, " bytes in ",
                              entry.size()));
    }
    bytes += static_cast<int64_t>(length);
    if (strings != nullptr) strings[i].resize_uninitialized(length);
    if (length <= std::numeric_limits<uint32_t>::max()) {
      const auto narrow = static_cast<uint32_t>(length);
      checksum =
          ExtendByNumber(checksum, swap ? __builtin_bswap32(narrow) : narrow);
    } else {
      checksum =
          ExtendByNumber(checksum, swap ? __builtin_bswap64(length) : length);
    }
  }
  uint32_t saved = 0;
  TF_RETURN_IF_ERROR(input.Read(kChecksumBytes, &saved));
  TF_RETURN_IF_ERROR(
      CompareChecksums(checksum, swap ? __builtin_bswap32(saved) : saved));
  checksum = ExtendByNumber(checksum, saved);
  if (bytes != input.left()) {
    return Bad(absl::StrCat("its strings have ", bytes, " bytes; there are ",
                            input.left()));
  }
  if (!with_bytes) return absl::OkStatus();
  if (strings == nullptr) TF_RETURN_IF_ERROR(input.Sum(bytes, &checksum));
  for (int64_t i = 0; strings != nullptr && i < n; ++i) {
    tstring& text = strings[i];
    TF_RETURN_IF_ERROR(input.Read(text.size(), text.mdata()));
    checksum = crc32c::Extend(checksum, text.data(), text.size());
  }
  return CompareChecksums(checksum, entry.crc32c());
}

absl::Status CheckpointFiles::CompareObjects(const BundleEntryProto& entry,
                                             int64_t n) {
  if (entry.size() == 0) return CompareChecksums(0, entry.crc32c());
  if (index_.is_of_other_byte_order()) {
    return absl::UnimplementedError("it has objects of another byte order");
  }
  EntryInput input(FileOf(entry.shard_id())->file.get(), entry);
  TF_RETURN_IF_ERROR(input.status());
  uint32_t checksum = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint64_t length;
    TF_RETURN_IF_ERROR(input.ReadLength(&length));
    if (length > static_cast<uint64_t>(input.left())) {
      return Bad(absl::StrCat("it has an object of ", length, " bytes where ",
                              input.left(), " are left"));
    }
    checksum = ExtendByNumber(checksum, length);
    TF_RETURN_IF_ERROR(input.Sum(static_cast<int64_t>(length), &checksum));
    uint32_t saved = 0;
    TF_RETURN_IF_ERROR(input.Read(kChecksumBytes, &saved));
    TF_RETURN_IF_ERROR(CompareChecksums(checksum, saved));
    checksum = ExtendByNumber(checksum, saved);
  }
  if (input.left() > 0) return Bad("bytes are left behind its objects");
  return CompareChecksums(checksum, entry.crc32c());
}

absl::Status CheckpointFiles::CompareBytes(const BundleEntryProto& entry) {
  EntryInput input(FileOf(entry.shard_id())->file.get(), entry);
  TF_RETURN_IF_ERROR(input.status());
  uint32_t checksum = 0;
  TF_RETURN_IF_ERROR(input.Sum(entry.size(), &checksum));
  return CompareChecksums(checksum, entry.crc32c());
}

absl::Status CheckpointFiles::CompareChecksum(int64_t i) {
  BundleEntryProto entry;
  TF_RETURN_IF_ERROR(Parse(i, &entry));
  // Each slice of a sliced tensor has an entry of its own.
  if (entry.slices_size() > 0) return absl::OkStatus();
  const int64_t n = TensorShape(entry.shape()).num_elements();
  if (entry.dtype() == DT_VARIANT) return CompareObjects(entry, n);
  if (entry.dtype() != DT_STRING) return CompareBytes(entry);
  return ReadStrings(entry, n, /*with_bytes=*/true, nullptr);
}

absl::Status CheckpointFiles::ReadPart(const SavedTensor& saved, int64_t part,
                                       Tensor* tensor) {
  if (index_.is_of_other_byte_order() || saved.dtype == DT_VARIANT) {
    return absl::UnimplementedError(
        "what machines of another byte order, or objects of C++, have saved is "
        "not read");
  }
  BundleEntryProto entry;
  TF_RETURN_IF_ERROR(Parse(saved.parts[part].entry, &entry));
  if (saved.dtype == DT_STRING) {
    return ReadStrings(entry, tensor->NumElements(), /*with_bytes=*/true,
                       tensor->flat<tstring>().data());
  }
  const absl::string_view memory = tensor->tensor_data();
  if (static_cast<int64_t>(memory.size()) != entry.size()) {
    return Bad(absl::StrCat("it has ", entry.size(), " bytes; ", memory.size(),
                            " are wanted"));
  }
  char* const bytes = const_cast<char*>(memory.data());
  TF_RETURN_IF_ERROR(ReadBytes(*FileOf(entry.shard_id())->file, entry.offset(),
                               entry.size(), bytes));
  return CompareChecksums(crc32c::Value(bytes, entry.size()), entry.crc32c());
}

absl::Status CheckpointFiles::Read(const SavedTensor& saved, Tensor* tensor) {
  const auto n = static_cast<int64_t>(saved.parts.size());
  if (n == 1) return ReadPart(saved, 0, tensor);
  for (int64_t part = 0; part < n; ++part) {
    TensorShape shape;
    TF_RETURN_IF_ERROR(
        TensorShape::BuildTensorShape(saved.parts[part].lengths, &shape));
    Tensor own(saved.dtype, shape);
    if (!own.IsInitialized()) {
      return absl::ResourceExhaustedError("there is no memory for a slice");
    }
    TF_RETURN_IF_ERROR(ReadPart(saved, part, &own));
    CopyPart(own, saved.parts[part], tensor);
  }
  return absl::OkStatus();
}

}  // namespace tfembed
