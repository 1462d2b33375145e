#ifndef TFEMBED_CORE_SUPPORT_OVERLAP_H_
#define TFEMBED_CORE_SUPPORT_OVERLAP_H_

#include <algorithm>
#include <cstdint>

namespace tfembed {

// Writes a batch of given rows to memory that is not in the cache. A key costs
// two misses, its bucket and its row, for one in ten a third; a core has some
// 24 misses under way at once, and one alone takes as long as 30 keys should.
// So every key goes through four stages, and between two of them many other
// keys have theirs:
//
//   ask(i)     computes where key i's bucket is and asks the memory for it;
//   find(i)    looks into it and asks for the row, or for the next bucket;
//   settle(i)  what find could not answer: other buckets, new keys;
//   finish(i)  writes the row.
//
// Each stage sees its keys in the order of 0 .. n - 1. State between stages is
// kept by Slot(i), in arrays of kOverlap entries.
//
// The stages roll over the batch in steps of 8 keys, some 30 keys apart.
// Lookups and training do one stage after the other, 128 keys at a time
// (table_find.h). So upserts would take 1.13 of the time at 8 floats on Zen 3;
// with the loops of simd/find.inc, 0.8 of it at 8 floats and 1.1 at 64 on
// Zen 5.
inline constexpr int64_t kOverlap = 128;
inline int Slot(int64_t i) { return static_cast<int>(i & (kOverlap - 1)); }

template <typename Ask, typename Find, typename Settle, typename Finish>
inline void Overlap(int64_t n, Ask ask, Find find, Settle settle,
                    Finish finish) {
  constexpr int64_t kStep = 8;
  constexpr int64_t kFindAfter = 32;
  constexpr int64_t kSettleAfter = 56;
  constexpr int64_t kFinishAfter = 80;
  static_assert(kFinishAfter + kStep <= kOverlap);
  const auto step = [n](int64_t begin, const auto& stage) {
    const int64_t end = std::min(begin + kStep, n);
    for (int64_t i = std::max<int64_t>(begin, 0); i < end; ++i) stage(i);
  };
  for (int64_t begin = 0; begin < n + kFinishAfter; begin += kStep) {
    step(begin, ask);
    step(begin - kFindAfter, find);
    step(begin - kSettleAfter, settle);
    step(begin - kFinishAfter, finish);
  }
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_OVERLAP_H_
