#ifndef TFEMBED_CORE_SIMD_DISPATCH_H_
#define TFEMBED_CORE_SIMD_DISPATCH_H_

#include <cstdint>

#include "cc/core/rows/row_addresses.h"
#include "cc/core/simd/hash_bucket.h"

// The inner loops, compiled once per instruction set (kernels.cc) and picked
// at run time. All of them give the same bits: sums are taken in order, lane by
// lane, and no multiply-add is fused.
namespace tfembed {

// The rules' parameters, of which the loops alone know more.
struct CommonParameters;
#define TFEMBED_RULE(name, Type) struct Type;
#include "cc/core/optimizers/rules.inc"

// Rows that will be written after a call, to be fetched meanwhile.
struct RowsToFetch {
  const MutableRow* rows = nullptr;
  int64_t n = 0;
  int num_slots = 0;
  SlotSet row_wise = 0;
};

// Consecutive rows, in segments, to be summed: segment s is rows
// [ends[s - 1], ends[s]), the first one begins at 0. Its sum, times scales[s],
// goes to sums + s * stride; where scales[s] is 0 it is 0 whatever the rows
// are.
struct PoolBlock {
  const float* const* rows = nullptr;
  const float* weights = nullptr;  // One per row; null: all 1.
  const int64_t* ends = nullptr;
  const float* scales = nullptr;  // One per segment; null: all 1.
  int64_t num_segments = 0;
  bool continues = false;  // The first segment adds to what is in `sums`.
  bool open = false;       // The last one goes on elsewhere: not scaled yet.
  // Sums go past the caches (row_copy.h), but one that is open: `sums` is at a
  // multiple of 64 bytes, `dim` and `stride` are multiples of 16. End with
  // StreamedRows.
  bool streams = false;
  // Where it `asks`, rows are asked for some ahead of the one at work: those of
  // this block, but the first ones unless it `begins`, and those of `num_ahead`
  // more addresses, which follow the last row's. Else all are on their way.
  bool asks = false;
  bool begins = false;
  int64_t num_ahead = 0;
  RowsToFetch to_write;  // As wide; about one is fetched per segment.
  int64_t dim = 0;
  float* sums = nullptr;
  int64_t stride = 0;
};

// Keys to be dealt to up to kMostGroups groups of about one size, each of which
// has all keys of some part of the hashes.
struct DealBlock {
  static constexpr int64_t kMostKeys = 2048;
  static constexpr int kMostGroups = 8;

  const int64_t* keys = nullptr;
  int64_t n = 0;  // Up to kMostKeys.
  int num_groups = 1;
  uint32_t first_position = 0;  // Of the first key; then they follow.

  // Out: the positions of each group's keys, in their order, and how many.
  uint32_t positions[kMostGroups][kMostKeys + 16];  // Some are written behind.
  int64_t sizes[kMostGroups];
};

// Keys whose rows are looked for, each in the bucket where a search begins.
// `indexes` is for setting `homes` alone.
struct FindBlock {
  static constexpr int64_t kMostKeys = 128;

  const int64_t* keys = nullptr;
  int64_t n = 0;  // Up to kMostKeys.
  const StripeIndexes* indexes = nullptr;
  RowAddresses addresses;
  int64_t floats_to_fetch = 0;  // The first ones of each row found.

  const HashBucket* homes[kMostKeys];  // Where the search for each key begins.
  // The next block, of at most as many keys, or null. Its homes are computed
  // and prefetched while this block is searched, one for each key here.
  FindBlock* next = nullptr;

  // Out: the row of each key if it is there;
  const float** rows = nullptr;
  // the keys, by number, that are not. Where their home has an overflow they
  // may lie elsewhere.
  int32_t unsettled[kMostKeys];
};

// Rows that are copied past the caches, one behind the other; null ones are
// left out. End with StreamedRows.
struct ReadBlock {
  const float* const* rows = nullptr;
  int64_t n = 0;
  int64_t lines = 0;        // Cache lines of 64 bytes in a row.
  float* values = nullptr;  // At a multiple of 64 bytes.
};

// Given rows, and where they are written to or added to; see simd/write.inc. A
// row may come several times.
struct WriteBlock {
  // Wider rows are asked for while others are written; others when their keys
  // are found, which are not too many lines at once.
  static constexpr int64_t kFewFloats = 32;
  // How far ahead of its write a row is asked for, and a given one.
  static constexpr int64_t kRowsAhead = 32;
  static constexpr int64_t kGivenAhead = 24;

  float* const* rows = nullptr;  // Null: nowhere.
  // By row: it holds nothing yet; null: none does.
  const bool* is_new = nullptr;
  // Positions in the given rows; null: 0, 1, ... The processor prefetches the
  // given rows by itself then.
  const uint32_t* positions = nullptr;
  bool asks = false;  // Narrow rows are asked for here, too.
  int64_t n = 0;
  int64_t num_ahead = 0;         // So many more positions follow.
  const float* given = nullptr;  // [.., dim]
  const float* old = nullptr;    // The same, to be subtracted; or null.
  int64_t dim = 0;
  // New rows go past the caches, and rows that are there where that is faster:
  // they are at multiples of 64 bytes, `dim` is a multiple of 16. End with
  // StreamedRows.
  bool streams = false;
  // To be asked for meanwhile, one a row: where searches will begin.
  const HashBucket* const* next_homes = nullptr;
  int64_t num_next = 0;  // At most n.
};

// n rows and their gradients, [n, dim]. A row may come several times.
struct ApplyBlock {
  const MutableRow* rows = nullptr;
  const float* gradients = nullptr;
  int64_t n = 0;
  int64_t dim = 0;
  float learning_rate = 0;
};

template <class Rule>
using ApplyFunction = void (*)(const Rule& rule, const CommonParameters& common,
                               const ApplyBlock& block);

struct Kernels {
  const char* name;
  void (*pool)(const PoolBlock& block);
  void (*deal_keys)(DealBlock* block);
  // Sets all `homes`, and asks for them.
  void (*ask_for_homes)(FindBlock* block);
  // How many keys are unsettled. REQUIRES: all `homes` are set.
  int64_t (*find_at_homes)(FindBlock* block);
  void (*stream_rows)(const ReadBlock& block);
  bool (*all_finite)(const float* x, int64_t n);
  // Whether `streams` is about rows that are there, too; see simd/write.inc.
  bool streams_old_rows;
  // Returns how many of the rows that were written have a NaN now.
  int64_t (*copy_rows)(const WriteBlock& block);
  // Adds given - old to rows; new ones get the given row.
  void (*add_rows)(const WriteBlock& block);
  // A member for each update rule, of the rule's name.
#define TFEMBED_RULE(name, Type) ApplyFunction<Type> name;
#include "cc/core/optimizers/rules.inc"
};

// The widest that the processor has, or a narrower one that the environment
// variable TFEMBED_SIMD names: baseline, avx2 or avx512.
const Kernels& ActiveKernels();

// The kernels of that name, or null where the processor lacks what they need.
const Kernels* FindKernels(const char* name);

// For tests and benchmarks: what ActiveKernels() returns from now on.
void SetActiveKernels(const Kernels& kernels);

}  // namespace tfembed

#endif  // TFEMBED_CORE_SIMD_DISPATCH_H_
