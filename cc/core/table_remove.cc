// Keys that go because somebody says so.
#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <shared_mutex>

#include "cc/core/striped_table.h"

namespace tfembed {
namespace {

constexpr int64_t kLookAhead = 16;  // Keys whose buckets are under way.

// Below this many keys waking threads costs more than it saves.
constexpr int64_t kParallelFrom = 1024;

}  // namespace

int64_t StripedTable::RemoveKeys(absl::Span<const int64_t> keys,
                                 Executor* executor) {
  if (keys.size() < kParallelFrom) executor = nullptr;
  absl::StatusOr<KeyPartition> partition = KeyPartition::Create(keys, executor);
  if (!partition.ok()) {  // No memory to sort them: one by one, then.
    int64_t removed = 0;
    for (int64_t key : keys) {
      TableStripe& stripe = this->stripe(HashKey(key));
      std::lock_guard<std::shared_mutex> lock(stripe.mutex());
      removed += stripe.Erase(HashKey(key), key);
    }
    return removed;
  }
  std::array<int64_t, kNumStripes> removed = {};
  ParallelFor(executor, kNumStripes, [&](int64_t s) {
    const KeyGroup group = partition->group(s);
    if (group.size == 0) return;
    std::lock_guard<std::shared_mutex> lock(stripes_[s].mutex());
    removed[s] = EraseGroup(group, &stripes_[s]);
  });
  return std::accumulate(removed.begin(), removed.end(), int64_t{0});
}

int64_t StripedTable::EraseGroup(const KeyGroup& group, TableStripe* stripe) {
  int64_t removed = 0;
  for (int64_t i = 0; i < group.size; ++i) {
    const int64_t ahead = std::min(i + kLookAhead, group.size - 1);
    __builtin_prefetch(stripe->index().Home(HashKey(group.keys[ahead])));
    removed += stripe->Erase(HashKey(group.keys[i]), group.keys[i]);
  }
  return removed;
}

// Nothing goes while a table of bounded size counts what a batch inserts.
std::unique_lock<std::shared_mutex> StripedTable::HoldIfBounded() {
  return max_size_ > 0 ? std::unique_lock<std::shared_mutex>(batches_)
                       : std::unique_lock<std::shared_mutex>();
}

void StripedTable::Remove(absl::Span<const int64_t> keys, Executor* executor) {
  const auto hold = HoldIfBounded();
  RemoveKeys(keys, executor);
}

void StripedTable::Evict(absl::Span<const int64_t> keys, Executor* executor) {
  const auto hold = HoldIfBounded();
  evicted_.Add(RemoveKeys(keys, executor));
}

}  // namespace tfembed
