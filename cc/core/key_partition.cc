#include "cc/core/key_partition.h"

#include <algorithm>
#include <limits>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tfembed {
namespace {

constexpr int64_t kChunk = 8192;  // Keys a task.

using Counts = std::array<int64_t, kNumStripes>;

}  // namespace

absl::StatusOr<KeyPartition> KeyPartition::Create(
    absl::Span<const int64_t> keys, Executor* executor) {
  const int64_t n = keys.size();
  if (n > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A batch has at most 2^32 - 1 keys; got ", n, ". Split it."));
  }
  KeyPartition partition;
  partition.keys_.reset(new (std::nothrow) int64_t[n]);
  partition.positions_.reset(new (std::nothrow) uint32_t[n]);
  if (partition.keys_ == nullptr || partition.positions_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("No memory to sort a batch of ", n, " keys. Split it."));
  }
  const int64_t num_chunks = (n + kChunk - 1) / kChunk;
  std::vector<Counts> places(num_chunks);  // First counts, then places to fill.
  ParallelFor(executor, num_chunks, [&](int64_t chunk) {
    Counts counts = {};
    const int64_t end = std::min(n, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      ++counts[StripeOf(HashKey(keys[i]))];
    }
    places[chunk] = counts;
  });
  int64_t place = 0;
  for (int stripe = 0; stripe < kNumStripes; ++stripe) {
    partition.begins_[stripe] = place;
    for (Counts& counts : places) {
      const int64_t count = counts[stripe];
      counts[stripe] = place;
      place += count;
    }
  }
  partition.begins_[kNumStripes] = place;
  ParallelFor(executor, num_chunks, [&](int64_t chunk) {
    Counts next = places[chunk];
    const int64_t end = std::min(n, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      const int64_t to = next[StripeOf(HashKey(keys[i]))]++;
      partition.keys_[to] = keys[i];
      partition.positions_[to] = static_cast<uint32_t>(i);
    }
  });
  return partition;
}

}  // namespace tfembed
