#ifndef TFEMBED_CORE_SUPPORT_OVERLAP_H_
#define TFEMBED_CORE_SUPPORT_OVERLAP_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace tfembed {

// Runs a batch over memory that is not in the cache. A key costs two misses,
// its bucket and its row, for one in ten a third; a core has some 24 misses
// under way at once, and one alone takes as long as 30 keys should. So blocks
// of kOverlap keys go through four stages, one stage after the other:
//
//   ask(i)     computes where key i's bucket is and asks the memory for it;
//   find(i)    looks into it and asks for the row, or for the next bucket, and
//              says whether the key is settled; where it says nothing, none is;
//   settle(i)  what find could not answer: other buckets, new keys;
//   finish(i)  reads or writes the row.
//
// Each stage sees its keys in the order of 0 .. n - 1. State between stages is
// kept by Slot(i), in arrays of kOverlap entries.
//
// In blocks, not by stages that roll over the batch some 30 keys apart, as it
// was: reads wait behind requests for other lines, so these are best made at
// one go. On Zen 3, beside the limit program in turns, finds take 0.93 (8
// floats) and 0.88 (64) of the time, upserts 0.86 and 0.91. Blocks of 32 leave
// the memory idle too often, while the last bucket of one is awaited (1.1 at 8
// floats); from 64 to 128 keys there is no difference.
inline constexpr int64_t kOverlap = 64;
inline int Slot(int64_t i) { return static_cast<int>(i & (kOverlap - 1)); }

template <typename Ask, typename Find, typename Settle, typename Finish>
inline void Overlap(int64_t n, Ask ask, Find find, Settle settle,
                    Finish finish) {
  constexpr bool kSettlesAll = std::is_void_v<decltype(find(0))>;
  for (int64_t begin = 0; begin < n; begin += kOverlap) {
    const int64_t end = std::min(begin + kOverlap, n);
    for (int64_t i = begin; i < end; ++i) ask(i);
    if constexpr (kSettlesAll) {
      for (int64_t i = begin; i < end; ++i) find(i);
      for (int64_t i = begin; i < end; ++i) settle(i);
    } else {
      int64_t unsettled[kOverlap];
      int num_unsettled = 0;
      for (int64_t i = begin; i < end; ++i) {
        unsettled[num_unsettled] = i;
        num_unsettled += !find(i);
      }
      for (int j = 0; j < num_unsettled; ++j) settle(unsettled[j]);
    }
    for (int64_t i = begin; i < end; ++i) finish(i);
  }
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_OVERLAP_H_
