#ifndef TFEMBED_CORE_TABLE_FIND_H_
#define TFEMBED_CORE_TABLE_FIND_H_

#include <cstdint>

#include "cc/core/hash_bucket.h"
#include "cc/core/row_store.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/table_stripe.h"

namespace tfembed {

// Lookups and training look for some keys at a time, by the loops of
// simd/find.inc: a key costs two misses, its bucket and its row, and a core has
// some 24 of them under way at once. First all buckets are asked for, then all
// of them are read and the rows asked for, then come the few keys that lie
// elsewhere. Blocks of 32 keys leave the memory idle too often, while the last
// bucket of one is awaited. On Zen 5 lookups of ~20 ids take 0.92 (16 floats)
// and 0.95 (64) of the time in blocks of 128 that they take in blocks of 64;
// blocks of 256 are slower again.
inline constexpr int64_t kFindKeys = FindBlock::kMostKeys;

// Where the searches in all stripes begin: as long as they are locked.
StripeIndexes IndexesOf(const TableStripes& stripes);

// For the kernel; `rows`, `floats_to_fetch` and `next` are left as they are.
// REQUIRES: n <= kFindKeys.
void SetKeys(const RowStore& store, const StripeIndexes& indexes,
             const int64_t* keys, int64_t n, FindBlock* block);

// Sets block->rows, and asks for the first `floats_to_fetch` of each. Returns
// how many there are. REQUIRES: all its `homes` are set.
int64_t FindAskedFor(const TableStripes& stripes, const RowStore& store,
                     FindBlock* block);

// Asks for where the keys may be that find_at_homes did not find. For writes,
// which may go on to insert them; reads look past few homes, and at once.
void AskPastHomes(const FindBlock& block, int64_t num_unsettled);

// Sets rows[i] to the row of keys[i], or to null, and asks for its first
// `floats`. Returns how many there are. REQUIRES: n <= kFindKeys.
int64_t FindRows(const TableStripes& stripes, const RowStore& store,
                 const StripeIndexes& indexes, const int64_t* keys, int64_t n,
                 int64_t floats, const float** rows);

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_FIND_H_
