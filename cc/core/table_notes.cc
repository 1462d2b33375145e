// What eviction policies noted of rows, as it comes from elsewhere.
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "cc/core/striped_table.h"

namespace tfembed {

absl::Status StripedTable::ImportNotes(absl::Span<const int64_t> keys,
                                       absl::Span<const uint32_t> notes) {
  if (!touches_) return absl::OkStatus();
  absl::StatusOr<KeyPartition> partition = KeyPartition::Create(keys, nullptr);
  if (!partition.ok()) return partition.status();
  const Moment now = Now();
  for (int s = 0; s < kNumStripes; ++s) {
    const KeyGroup group = partition->group(s);
    if (group.size == 0) continue;
    std::lock_guard<std::shared_mutex> lock(stripes_[s].mutex());
    for (int64_t i = 0; i < group.size; ++i) {
      const uint32_t found =
          stripes_[s].Find(HashKey(group.keys[i]), group.keys[i]);
      if (found == HashIndex::kNoRow) continue;
      float* const row = store_->Row(found);
      SetNote(notes[group.positions[i]], row);
      TakeNote(now, row);
    }
  }
  return absl::OkStatus();
}

}  // namespace tfembed
