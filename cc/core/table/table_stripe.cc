#include "cc/core/table/table_stripe.h"

#include "cc/core/support/hash.h"
#include "cc/core/support/prefetch.h"
#include "cc/core/table/hash_index.h"

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
  // Keep the place: a batch may have reserved room for its missing keys while
  // this key was not missing.
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

TableStripes::TableStripes() {
  const auto pool = std::make_shared<ChunkPool>();
  for (int s = 0; s < kNumStripes; ++s) {
    const StripeLock lock(*this, stripes_[s]);
    stripes_[s].Join(static_cast<double>(s) / kNumStripes, pool);
  }
}

void TableStripes::SetUsualKeys(int64_t keys) {
  for (TableStripe& stripe : stripes_) {
    const StripeLock lock(*this, stripe);
    stripe.SetUsualKeys(keys);
  }
}

int64_t TableStripes::bytes() const {
  int64_t bytes = 0;
  for (const TableStripe& stripe : stripes_) {
    stripe.mutex().AssertReaderHeld();
    bytes += stripe.bytes();
  }
  return bytes;
}

std::array<int64_t, kNumStripes + 1> TableStripes::FirstKeys() const {
  std::array<int64_t, kNumStripes + 1> begins = {};
  for (int s = 0; s < kNumStripes; ++s)
    begins[s + 1] = begins[s] + index(s).size();
  return begins;
}

StripeIndexes TableStripes::Indexes() const {
  StripeIndexes indexes;
  for (int s = 0; s < kNumStripes; ++s) index(s).Show(s, &indexes);
  return indexes;
}

void SetKeys(const RowStore& store, const StripeIndexes& indexes,
             const int64_t* keys, int64_t n, FindBlock* block) {
  block->keys = keys;
  block->n = n;
  block->indexes = &indexes;
  block->addresses = store.addresses();
}

int64_t FindAskedFor(const TableStripes& stripes, const RowStore& store,
                     FindBlock* block) {
  const int64_t num_unsettled = ActiveKernels().find_at_homes(block);
  int64_t misses = 0;
  for (int64_t j = 0; j < num_unsettled; ++j) {
    const int32_t i = block->unsettled[j];
    uint32_t row = HashIndex::kNoRow;
    if (block->homes[i]->overflow != 0) {
      const int64_t key = block->keys[i];
      const uint64_t hash = HashKey(key);
      row = stripes.index(StripeOf(hash)).FindPast(hash, key);
    }
    if (row != HashIndex::kNoRow) {
      block->rows[i] = store.Row(row);
      PrefetchRow(block->rows[i], block->floats_to_fetch);
    } else {
      block->rows[i] = nullptr;
      ++misses;
    }
  }
  return block->n - misses;
}

void AskPastHomes(const FindBlock& block, int64_t num_unsettled) {
  for (int64_t j = 0; j < num_unsettled; ++j) {
    HashIndex::PrefetchPast(*block.homes[block.unsettled[j]]);
  }
}

int64_t FindRows(const TableStripes& stripes, const RowStore& store,
                 const StripeIndexes& indexes, const int64_t* keys, int64_t n,
                 int64_t floats, const float** rows) {
  FindBlock block;
  SetKeys(store, indexes, keys, n, &block);
  block.floats_to_fetch = floats;
  block.rows = rows;
  ActiveKernels().ask_for_homes(&block);
  return FindAskedFor(stripes, store, &block);
}

}  // namespace tfembed
