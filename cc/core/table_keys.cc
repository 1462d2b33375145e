// What can be asked of the index alone.
#include <algorithm>

#include "cc/core/striped_table.h"

namespace tfembed {
namespace {

constexpr int64_t kLookAhead = 16;  // Keys whose buckets are under way.
constexpr int64_t kKeysPerTask = 8192;

}  // namespace

absl::Status StripedTable::ExportKeys(
    const std::function<absl::StatusOr<int64_t*>(int64_t n)>& allocate,
    Executor* executor) const {
  SharedLocks locks(stripes_);
  const auto begins = FirstKeys(stripes_);
  absl::StatusOr<int64_t*> keys = allocate(begins[kNumStripes]);
  if (!keys.ok()) return keys.status();
  ParallelFor(executor, kNumStripes, [&](int64_t s) {
    const HashIndex& index = stripes_[s].index();
    int64_t* to = *keys + begins[s];
    index.ForEach(0, index.num_buckets(),
                  [&to](int64_t key, uint32_t row) { *to++ = key; });
  });
  return absl::OkStatus();
}

void StripedTable::Contains(absl::Span<const int64_t> keys, bool* exists,
                            Executor* executor) const {
  SharedLocks locks(stripes_);
  const int64_t n = keys.size();
  ParallelFor(executor, (n + kKeysPerTask - 1) / kKeysPerTask, [&](int64_t t) {
    const int64_t end = std::min(n, (t + 1) * kKeysPerTask);
    for (int64_t i = t * kKeysPerTask; i < end; ++i) {
      const uint64_t ahead = HashKey(keys[std::min(i + kLookAhead, end - 1)]);
      __builtin_prefetch(stripe(ahead).index().Home(ahead));
      const uint64_t hash = HashKey(keys[i]);
      exists[i] = stripe(hash).index().Find(hash, keys[i]) != HashIndex::kNoRow;
    }
  });
}

}  // namespace tfembed
