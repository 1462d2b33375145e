#include "cc/core/table_stripe.h"

namespace tfembed {

absl::Status TableStripe::Reserve(int64_t keys) {
  absl::Status status = index_.Reserve(index_.size() + reserved_ + keys);
  if (status.ok()) status = Promise(keys);
  return status;
}

absl::Status TableStripe::Promise(int64_t keys) {
  absl::Status status = index_.Promise(index_.size() + reserved_ + keys);
  if (status.ok()) PromiseFromRoom(keys);
  return status;
}

bool TableStripe::PromiseFromRoom(int64_t keys) {
  const int64_t needed = reserved_ + keys;
  if (index_.size() + needed > index_.promised_capacity()) return false;
  reserved_ = needed;
  ++reservations_;
  return true;
}

void TableStripe::Release(int64_t keys) {
  reserved_ -= keys;
  if (--reservations_ > 0) return;
  reserved_ = 0;
  index_.Withdraw();
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

void JoinStripes(TableStripes* stripes) {
  const auto pool = std::make_shared<ChunkPool>();
  for (int i = 0; i < kNumStripes; ++i) {
    (*stripes)[i].set_growth_phase(static_cast<double>(i) / kNumStripes);
    (*stripes)[i].set_index_pool(pool);
  }
}

}  // namespace tfembed
