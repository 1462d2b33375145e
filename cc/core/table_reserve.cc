// Room for the new keys of a batch, before any of it is written.
#include <algorithm>
#include <array>
#include <mutex>
#include <new>
#include <numeric>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/row_writes.h"
#include "cc/core/striped_table.h"
#include "cc/core/table_bound.h"

namespace tfembed {
namespace {

constexpr int64_t kLookAhead = 16;  // Keys whose buckets are under way.

}  // namespace

// `fresh_bytes`: what all keys need if they are new, but for what `bound` has
// been promised. Where it fails nothing is reserved.
absl::Status StripedTable::ReserveGroups(
    const KeyPartition& partition, const RowWrites& writes, const Bound* bound,
    int64_t fresh_bytes, Executor* executor, Reservations* reservations) {
  // Mostly there is room, and memory, even if every key were new.
  if (reservations->memory.AskForMore(fresh_bytes)) {
    const absl::Status status =
        ReserveGroupsOnce(partition, writes, bound, /*counts_all=*/false,
                          executor, reservations)
            .status();
    if (!absl::IsResourceExhausted(status)) return status;
    ReleaseGroups(reservations);
  }
  const absl::StatusOr<int64_t> rows = ReserveGroupsOnce(
      partition, writes, bound, /*counts_all=*/true, executor, reservations);
  absl::Status status = rows.status();
  if (rows.ok()) {
    status =
        reservations->memory.Ask(std::min(fresh_bytes, store_->BytesOf(*rows)));
  }
  if (!status.ok()) ReleaseGroups(reservations);
  return status;
}

void StripedTable::ReleaseGroups(Reservations* reservations) {
  reservations->memory.Return();
  for (int s = 0; s < kNumStripes; ++s) {
    const int64_t keys = std::exchange(reservations->keys[s], -1);
    if (keys < 0) continue;
    std::lock_guard<std::shared_mutex> lock(stripes_[s].mutex());
    stripes_[s].Release(keys);
  }
}

// Returns how many rows need memory, of the keys that were counted: where
// `counts_all`, of all.
absl::StatusOr<int64_t> StripedTable::ReserveGroupsOnce(
    const KeyPartition& partition, const RowWrites& writes, const Bound* bound,
    bool counts_all, Executor* executor, Reservations* reservations) {
  std::array<int, kNumStripes>& order = reservations->order;
  int num_short = 0;
  int end = kNumStripes;
  for (int s = 0; s < kNumStripes; ++s) {
    const int64_t keys = partition.group(s).size;
    std::lock_guard<std::shared_mutex> lock(stripes_[s].mutex());
    if (keys > 0 && (counts_all || !stripes_[s].PromiseFromRoom(keys))) {
      order[num_short++] = s;
      continue;
    }
    order[--end] = s;
    if (keys > 0) reservations->keys[s] = keys;
  }
  std::array<absl::Status, kNumStripes> statuses;
  std::array<int64_t, kNumStripes> fresh_rows = {};
  ParallelFor(executor, num_short, [&](int64_t i) {
    const int s = order[i];
    const int64_t leaving = bound == nullptr ? 0 : bound->leaving(s);
    statuses[i] =
        ReserveMissing(partition.group(s), writes, leaving, &stripes_[s],
                       &reservations->keys[s], &fresh_rows[i]);
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return std::accumulate(fresh_rows.begin(), fresh_rows.end(), int64_t{0});
}

// The places of `leaving` keys will be free.
absl::Status StripedTable::ReserveMissing(const KeyGroup& group,
                                          const RowWrites& writes,
                                          int64_t leaving, TableStripe* stripe,
                                          int64_t* reserved,
                                          int64_t* fresh_rows) {
  std::lock_guard<std::shared_mutex> lock(stripe->mutex());
  int64_t new_keys = 0;
  try {
    new_keys = CountMissing(group, writes, *stripe);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("No memory to count the new ones among ", group.size,
                     " keys of a batch; nothing was changed. Split it."));
  }
  const int64_t places = std::max<int64_t>(0, new_keys - leaving);
  *fresh_rows = stripe->CountFreshRows(places);
  absl::Status status = stripe->Promise(places);
  if (status.ok()) *reserved = places;
  return status;
}

// How many distinct keys are really new, so that neither repeats nor keys that
// are there make a table grow. Throws std::bad_alloc.
int64_t StripedTable::CountMissing(const KeyGroup& group,
                                   const RowWrites& writes,
                                   const TableStripe& stripe) {
  std::vector<uint64_t> missing;
  for (int64_t i = 0; i < group.size; ++i) {
    const int64_t ahead = std::min(i + kLookAhead, group.size - 1);
    __builtin_prefetch(stripe.index().Home(HashKey(group.keys[ahead])));
    if (!writes.Inserts(group.positions[i])) continue;
    const uint64_t hash = HashKey(group.keys[i]);
    if (stripe.Find(hash, group.keys[i]) == HashIndex::kNoRow) {
      missing.push_back(hash);
    }
  }
  std::sort(missing.begin(), missing.end());
  return std::unique(missing.begin(), missing.end()) - missing.begin();
}

}  // namespace tfembed
