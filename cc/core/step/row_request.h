#ifndef TFEMBED_CORE_STEP_ROW_REQUEST_H_
#define TFEMBED_CORE_STEP_ROW_REQUEST_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace tfembed {

// The rows that a batch needs of one table: its distinct keys, numbered in the
// order in which they first come, and dealt to the table's shards. A key's
// place is its position among all keys, shard by shard, each in the order of
// the numbers. Not thread-safe.
//
//   Add(key) for every key       the numbers
//   Deal(shards)                 the places
class RowRequest {
 public:
  // A table has fewer keys than this in one request.
  static constexpr int64_t kMostKeys = int64_t{1} << 31;

  static constexpr int64_t kNone = -1;

  // Takes the memory for up to `keys` keys.
  explicit RowRequest(int64_t keys);

  // Returns the number of `key`, the next one if the key is new.
  int64_t Add(int64_t key);

  // Appends `key` under a number of its own, even if it is there already. Such
  // a request has no other keys, and finds none.
  int64_t Append(int64_t key);

  // The number of `key`; kNone where it was not added.
  int64_t Find(int64_t key) const;

  // By number.
  const std::vector<int64_t>& keys() const { return keys_; }

  // Deals key i to shards[i], each in [0, num_shards).
  void Deal(absl::Span<const int32_t> shards, int num_shards);

  // The keys of a shard. REQUIRES: Deal.
  absl::Span<const int64_t> shard(int shard) const {
    return absl::MakeConstSpan(dealt_).subspan(
        begins_[shard], begins_[shard + 1] - begins_[shard]);
  }

  // The place of a number. REQUIRES: Deal.
  int64_t place(int64_t number) const { return places_[number]; }

 private:
  // Returns the position in the index that `key` has, or would have.
  uint64_t Probe(int64_t key) const;

  std::vector<int64_t> keys_;    // By number.
  std::vector<int32_t> index_;   // Open addressing: numbers, or kNone.
  std::vector<int64_t> dealt_;   // By place.
  std::vector<int32_t> places_;  // By number.
  std::vector<int64_t> begins_;  // By shard; then the end.
};

// Sets shards[i] to floormod(keys[i], num_shards).
void DealByRemainder(absl::Span<const int64_t> keys, int num_shards,
                     std::vector<int32_t>* shards);

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_ROW_REQUEST_H_
