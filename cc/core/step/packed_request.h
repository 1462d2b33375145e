#ifndef TFEMBED_CORE_STEP_PACKED_REQUEST_H_
#define TFEMBED_CORE_STEP_PACKED_REQUEST_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/rows/value_type.h"

namespace tfembed {

// Messages between a worker and an owner of rows, one a step and direction:
//
//   request  worker to owner   the keys of all tables that the owner has
//   rows     owner to worker   their rows
//   sums     worker to owner   their summed gradients
//
// A message is bytes, in this machine's order of bytes:
//
//   header, 64 bytes    magic, version, kind, status, dtype of the numbers,
//                       number of parts, bytes of what follows
//   request             16 bytes a part: kind, encoding of keys, width of a
//                       row, number of keys; then each part's keys, padded to
//                       8 bytes
//   rows, sums          the numbers, part by part, row by row
//
// A message whose status is an error has the error's text and nothing else: so
// an error of one worker reaches all owners.
enum class MessageKind : uint16_t { kRequest = 1, kRows = 2, kSums = 3 };

// A part asks for the rows of distinct keys. (Sums of bags are to come.)
enum class PartKind : uint8_t { kRows = 1 };

inline constexpr int64_t kMessageHeader = 64;  // Bytes.

// The keys of one shard of a table: integers, or strings.
struct RequestPart {
  int64_t dim = 0;  // The width of a row.
  bool are_strings = false;
  absl::Span<const int64_t> keys;
  absl::Span<const absl::string_view> strings;

  int64_t size() const { return are_strings ? strings.size() : keys.size(); }
};

// A request to pack. Integers that all fit take 4 bytes each.
class RequestPacker {
 public:
  // Borrows the parts. `numbers`: the dtype of rows and sums on the way.
  RequestPacker(absl::Span<const RequestPart> parts, ValueType numbers);

  int64_t size() const { return size_; }
  void Pack(char* message) const;

 private:
  const absl::Span<const RequestPart> parts_;
  const ValueType numbers_;
  std::vector<uint8_t> encodings_;  // By part.
  int64_t size_ = 0;
};

// A request as it was received. Owns integers, borrows the bytes of strings.
class ReceivedRequest {
 public:
  // InvalidArgument where the message is no whole request of this version; the
  // error of its status.
  static absl::StatusOr<ReceivedRequest> Parse(absl::Span<const char> message);

  ReceivedRequest(ReceivedRequest&&) = default;
  ReceivedRequest& operator=(ReceivedRequest&&) = default;

  ValueType numbers() const { return numbers_; }
  absl::Span<const RequestPart> parts() const { return parts_; }

  // The bytes of the rows of part p, or of all parts.
  int64_t RowBytes(int64_t p) const {
    return parts_[p].size() * parts_[p].dim * numbers_.size();
  }
  int64_t RowBytes() const;

 private:
  ReceivedRequest() = default;

  ValueType numbers_;
  std::vector<RequestPart> parts_;
  std::vector<std::vector<int64_t>> keys_;
  std::vector<std::vector<absl::string_view>> strings_;
};

// Writes the header of rows or sums of `bytes` bytes; their place follows.
void PackHeader(MessageKind kind, ValueType numbers, int64_t bytes,
                char* message);

// The rows or sums that answer `request`, part by part. InvalidArgument where
// the message is of another kind, version or request; the error of its status.
absl::StatusOr<std::vector<absl::Span<const char>>> ParseRows(
    MessageKind kind, const ReceivedRequest& request,
    absl::Span<const char> message);

// A message of this kind whose status is `error`.
std::vector<char> PackError(MessageKind kind, const absl::Status& error);

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_PACKED_REQUEST_H_
