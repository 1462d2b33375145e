#include "cc/core/table_find.h"

#include "cc/core/hash_index.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/prefetch.h"

namespace tfembed {

StripeIndexes IndexesOf(const TableStripes& stripes) {
  StripeIndexes indexes;
  for (int s = 0; s < kNumStripes; ++s) stripes[s].index().Show(s, &indexes);
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
      row = stripes[StripeOf(hash)].index().FindPast(hash, key);
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
