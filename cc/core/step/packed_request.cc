#include "cc/core/step/packed_request.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tfembed {
namespace {

constexpr uint32_t kMagic = 0x51524654;  // "TFRQ".
constexpr uint16_t kVersion = 1;
constexpr int32_t kMostStatus = 16;  // absl's kUnauthenticated.
constexpr int64_t kMostDim = int64_t{1} << 24;

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t kind = 0;
  int32_t status = 0;    // A code of absl.
  uint32_t numbers = 0;  // An ElementKind.
  uint64_t parts = 0;
  uint64_t bytes = 0;  // After the header.
  uint64_t unused[4] = {};
};
static_assert(sizeof(Header) == kMessageHeader);

enum Encoding : uint8_t { kNarrow = 1, kWide = 2, kStrings = 3 };

struct PartHeader {
  uint8_t kind = static_cast<uint8_t>(PartKind::kRows);
  uint8_t encoding = 0;
  uint16_t unused = 0;
  uint32_t dim = 0;
  uint64_t size = 0;
};
static_assert(sizeof(PartHeader) == 16);

constexpr int64_t Padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

uint8_t EncodingOf(const RequestPart& part) {
  if (part.are_strings) return kStrings;
  bool fits = true;
  for (int64_t key : part.keys) fits &= key == static_cast<int32_t>(key);
  return fits ? kNarrow : kWide;
}

int64_t KeyBytes(const RequestPart& part, uint8_t encoding) {
  if (encoding == kNarrow) return 4 * part.size();
  if (encoding == kWide) return 8 * part.size();
  int64_t bytes = 4 * part.size();
  for (absl::string_view text : part.strings) bytes += text.size();
  return bytes;
}

void PackKeys(const RequestPart& part, uint8_t encoding, char* to) {
  if (encoding == kNarrow) {
    for (int64_t key : part.keys) {
      const auto narrow = static_cast<int32_t>(key);
      std::memcpy(to, &narrow, sizeof(narrow));
      to += sizeof(narrow);
    }
  } else if (encoding == kWide) {
    if (!part.keys.empty()) {
      std::memcpy(to, part.keys.data(), 8 * part.keys.size());
    }
  } else {
    for (absl::string_view text : part.strings) {
      const auto size = static_cast<uint32_t>(text.size());
      std::memcpy(to, &size, sizeof(size));
      to += sizeof(size);
    }
    for (absl::string_view text : part.strings) {
      std::copy(text.begin(), text.end(), to);
      to += text.size();
    }
  }
}

const char* NameOf(MessageKind kind) {
  if (kind == MessageKind::kRequest) return "a request for rows";
  return kind == MessageKind::kRows ? "rows" : "summed gradients";
}

template <typename... Parts>
absl::Status Damaged(MessageKind kind, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(
      "A message that should be ", NameOf(kind), " is damaged: ", parts...,
      ". Do all processes run the same tfembed?"));
}

// Checks the header and the length; returns what follows the header.
absl::StatusOr<absl::Span<const char>> Open(MessageKind kind,
                                            absl::Span<const char> message,
                                            Header* header) {
  if (message.size() < sizeof(Header)) {
    return Damaged(kind, "it has ", message.size(), " bytes");
  }
  std::memcpy(header, message.data(), sizeof(Header));
  if (header->magic != kMagic) {
    return Damaged(kind, "it is none of tfembed's");
  }
  if (header->version != kVersion) {
    return Damaged(kind, "it is of version ", header->version,
                   "; this process has version ", kVersion);
  }
  if (header->kind != static_cast<uint16_t>(kind)) {
    return Damaged(kind, "it is of kind ", header->kind);
  }
  const absl::Span<const char> rest = message.subspan(sizeof(Header));
  if (header->bytes != rest.size()) {
    return Damaged(kind, "it has ", rest.size(), " of ", header->bytes,
                   " bytes");
  }
  if (header->status < 0 || header->status > kMostStatus) {
    return Damaged(kind, "its status is ", header->status);
  }
  if (header->status != 0) {
    return absl::Status(static_cast<absl::StatusCode>(header->status),
                        absl::string_view(rest.data(), rest.size()));
  }
  const auto numbers = static_cast<ElementKind>(header->numbers);
  if (header->numbers > std::numeric_limits<uint8_t>::max() ||
      !ValueType(numbers).is_trainable()) {
    return Damaged(kind, "its numbers are of type ", header->numbers);
  }
  return rest;
}

// The bytes of the part's keys, of those that are left. Those of strings are
// known only when their lengths are read.
absl::StatusOr<int64_t> SizeOfKeys(const PartHeader& header,
                                   absl::Span<const char> left) {
  constexpr MessageKind kKind = MessageKind::kRequest;
  if (header.kind != static_cast<uint8_t>(PartKind::kRows) ||
      header.encoding < kNarrow || header.encoding > kStrings) {
    return Damaged(kKind, "a part has kind ", int{header.kind},
                   " and keys of encoding ", int{header.encoding});
  }
  if (header.dim < 1 || header.dim > kMostDim) {
    return Damaged(kKind, "a part has rows of ", header.dim, " numbers");
  }
  const uint64_t key_bytes = header.encoding == kWide ? 8 : 4;
  if (header.size > left.size() / key_bytes) {
    return Damaged(kKind, "the ", header.size, " keys of a part end beyond it");
  }
  auto bytes = static_cast<int64_t>(key_bytes * header.size);
  for (uint64_t i = 0; header.encoding == kStrings && i < header.size; ++i) {
    uint32_t size;
    std::memcpy(&size, left.data() + 4 * i, sizeof(size));
    bytes += size;  // At most 2^32 in each 4 bytes: no overflow.
  }
  if (Padded(bytes) > static_cast<int64_t>(left.size())) {
    return Damaged(kKind, "the keys of a part end beyond it");
  }
  return bytes;
}

// REQUIRES: there are as many bytes as SizeOfKeys says.
void ReadKeys(const PartHeader& header, const char* bytes,
              std::vector<int64_t>* keys,
              std::vector<absl::string_view>* strings) {
  const auto n = static_cast<int64_t>(header.size);
  if (header.encoding == kNarrow) {
    keys->resize(n);
    for (int64_t i = 0; i < n; ++i) {
      int32_t key;
      std::memcpy(&key, bytes + 4 * i, sizeof(key));
      (*keys)[i] = key;
    }
  } else if (header.encoding == kWide) {
    keys->resize(n);
    if (n > 0) std::memcpy(keys->data(), bytes, 8 * n);
  } else {
    strings->resize(n);
    const char* at = bytes + 4 * n;
    for (int64_t i = 0; i < n; ++i) {
      uint32_t size;
      std::memcpy(&size, bytes + 4 * i, sizeof(size));
      (*strings)[i] = absl::string_view(at, size);
      at += size;
    }
  }
}

}  // namespace

RequestPacker::RequestPacker(absl::Span<const RequestPart> parts,
                             ValueType numbers)
    : parts_(parts), numbers_(numbers) {
  size_ = kMessageHeader + parts.size() * sizeof(PartHeader);
  for (const RequestPart& part : parts) {
    encodings_.push_back(EncodingOf(part));
    size_ += Padded(KeyBytes(part, encodings_.back()));
  }
}

void RequestPacker::Pack(char* message) const {
  Header header;
  header.kind = static_cast<uint16_t>(MessageKind::kRequest);
  header.numbers = static_cast<uint32_t>(numbers_.kind());
  header.parts = parts_.size();
  header.bytes = size_ - kMessageHeader;
  std::memcpy(message, &header, sizeof(header));
  char* to = message + kMessageHeader;
  char* keys = to + parts_.size() * sizeof(PartHeader);
  for (size_t p = 0; p < parts_.size(); ++p) {
    PartHeader part;
    part.encoding = encodings_[p];
    part.dim = static_cast<uint32_t>(parts_[p].dim);
    part.size = parts_[p].size();
    std::memcpy(to, &part, sizeof(part));
    to += sizeof(part);
    const int64_t bytes = KeyBytes(parts_[p], encodings_[p]);
    PackKeys(parts_[p], encodings_[p], keys);
    std::fill(keys + bytes, keys + Padded(bytes), 0);
    keys += Padded(bytes);
  }
}

absl::StatusOr<ReceivedRequest> ReceivedRequest::Parse(
    absl::Span<const char> message) {
  Header header;
  absl::StatusOr<absl::Span<const char>> opened =
      Open(MessageKind::kRequest, message, &header);
  if (!opened.ok()) return opened.status();
  absl::Span<const char> left = *opened;
  if (header.parts > left.size() / sizeof(PartHeader)) {
    return Damaged(MessageKind::kRequest, "it has ", header.parts, " parts");
  }
  ReceivedRequest request;
  request.numbers_ = ValueType(static_cast<ElementKind>(header.numbers));
  const char* from = left.data();
  left.remove_prefix(header.parts * sizeof(PartHeader));
  request.parts_.resize(header.parts);
  request.keys_.resize(header.parts);
  request.strings_.resize(header.parts);
  for (uint64_t p = 0; p < header.parts; ++p) {
    PartHeader part;
    std::memcpy(&part, from + p * sizeof(part), sizeof(part));
    const absl::StatusOr<int64_t> bytes = SizeOfKeys(part, left);
    if (!bytes.ok()) return bytes.status();
    ReadKeys(part, left.data(), &request.keys_[p], &request.strings_[p]);
    left.remove_prefix(Padded(*bytes));
    request.parts_[p].dim = part.dim;
    request.parts_[p].are_strings = part.encoding == kStrings;
    request.parts_[p].keys = request.keys_[p];
    request.parts_[p].strings = request.strings_[p];
  }
  if (left.empty()) return request;
  return Damaged(MessageKind::kRequest, left.size(), " bytes follow its keys");
}

int64_t ReceivedRequest::RowBytes() const {
  int64_t bytes = 0;
  for (size_t p = 0; p < parts_.size(); ++p) bytes += RowBytes(p);
  return bytes;
}

void PackHeader(MessageKind kind, ValueType numbers, int64_t bytes,
                char* message) {
  Header header;
  header.kind = static_cast<uint16_t>(kind);
  header.numbers = static_cast<uint32_t>(numbers.kind());
  header.bytes = bytes;
  std::memcpy(message, &header, sizeof(header));
}

absl::StatusOr<std::vector<absl::Span<const char>>> ParseRows(
    MessageKind kind, const ReceivedRequest& request,
    absl::Span<const char> message) {
  Header header;
  absl::StatusOr<absl::Span<const char>> opened = Open(kind, message, &header);
  if (!opened.ok()) return opened.status();
  if (header.numbers != static_cast<uint32_t>(request.numbers().kind()) ||
      static_cast<int64_t>(opened->size()) != request.RowBytes()) {
    return Damaged(kind, "it has ", opened->size(), " bytes of type ",
                   header.numbers, ", where its request is for ",
                   request.RowBytes(), " bytes of ", request.numbers().name());
  }
  std::vector<absl::Span<const char>> parts;
  int64_t begin = 0;
  for (size_t p = 0; p < request.parts().size(); ++p) {
    parts.push_back(opened->subspan(begin, request.RowBytes(p)));
    begin += request.RowBytes(p);
  }
  return parts;
}

std::vector<char> PackError(MessageKind kind, const absl::Status& error) {
  Header header;
  header.kind = static_cast<uint16_t>(kind);
  header.status = static_cast<int32_t>(error.code());
  header.bytes = error.message().size();
  std::vector<char> message(kMessageHeader + header.bytes);
  std::memcpy(message.data(), &header, sizeof(header));
  std::copy(error.message().begin(), error.message().end(),
            message.begin() + kMessageHeader);
  return message;
}

}  // namespace tfembed
