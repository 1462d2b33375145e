// Keys that training has seen and admission has not let in yet.
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "cc/core/striped_table.h"

namespace tfembed {

int64_t StripedTable::CountWaiting() const {
  int64_t waiting = 0;
  for (const auto& filter : filters_) {
    if (filter != nullptr) waiting += filter->num_waiting();
  }
  return waiting;
}

void StripedTable::ForEachWaiting(
    const AdmissionFilter::WaitingVisitor& visit) const {
  for (const auto& filter : filters_) {
    if (filter != nullptr) filter->ForEachWaiting(visit);
  }
}

int64_t StripedTable::num_waiting() const {
  const SharedLocks locks(stripes_);
  return CountWaiting();
}

void StripedTable::IsKnown(absl::Span<const int64_t> keys, bool* known) const {
  Contains(keys, known, nullptr);
  if (filters_[0] == nullptr) return;
  const SharedLocks locks(stripes_);
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t hash = HashKey(keys[i]);
    known[i] |= filters_[StripeOf(hash)]->IsWaiting(hash, keys[i]);
  }
}

absl::Status StripedTable::ImportWaiting(absl::Span<const int64_t> keys,
                                         absl::Span<const int32_t> seen) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (seen[i] >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("A key that waits has been seen at least once; key ",
                     keys[i], " was ", seen[i], " times."));
  }
  if (filters_[0] == nullptr) return absl::OkStatus();
  // Who counts what a batch will insert must find the same when it does.
  const auto hold = HoldIfBounded();
  absl::StatusOr<KeyPartition> partition = KeyPartition::Create(keys, nullptr);
  if (!partition.ok()) return partition.status();
  for (int s = 0; s < kNumStripes; ++s) {
    const KeyGroup group = partition->group(s);
    if (group.size == 0) continue;
    std::lock_guard<std::shared_mutex> lock(stripes_[s].mutex());
    AdmissionFilter* const filter = filters_[s].get();
    absl::Status status = filter->Reserve(group.size);
    if (!status.ok()) return status;
    for (int64_t i = 0; i < group.size; ++i) {
      const int64_t key = group.keys[i];
      const uint64_t hash = HashKey(key);
      if (stripes_[s].Find(hash, key) != HashIndex::kNoRow) continue;
      filter->Wait(hash, key, seen[group.positions[i]]);
    }
    filter->Release(group.size);
  }
  return absl::OkStatus();
}

EmbeddingTable::CountersShape StripedTable::counters_shape() const {
  return counters_shape_;
}

void StripedTable::ImportCounters(int64_t block,
                                  absl::Span<const uint8_t> counters) {
  std::lock_guard<std::shared_mutex> lock(stripes_[block].mutex());
  absl::c_copy(counters, filters_[block]->shared_counters().begin());
}

}  // namespace tfembed
