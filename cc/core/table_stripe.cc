#include "cc/core/table_stripe.h"

namespace tfembed {

absl::Status TableStripe::Reserve(int64_t keys) {
  const int64_t needed = reserved_ + keys;
  absl::Status status = index_.Reserve(index_.size() + needed);
  if (!status.ok()) return status;
  reserved_ = needed;
  ++reservations_;
  return absl::OkStatus();
}

void TableStripe::Release(int64_t keys) {
  reserved_ -= keys;
  if (--reservations_ == 0) reserved_ = 0;
}

bool TableStripe::Erase(uint64_t hash, int64_t key) {
  const uint32_t row = index_.Erase(hash, key);
  if (row == HashIndex::kNoRow) return false;
  pool_.Return(row);
  // Someone may have reserved room for his batch's missing keys when this one
  // was not missing: its place is kept for him.
  if (reservations_ > 0) ++reserved_;
  return true;
}

void TableStripe::Clear() {
  index_.Clear();
  pool_.Clear();
}

absl::Status TableStripe::ClearFor(int64_t keys) {
  pool_.Clear();
  return index_.ClearFor(keys);
}

}  // namespace tfembed
