#ifndef TFEMBED_CORE_SUPPORT_OVERLAP_H_
#define TFEMBED_CORE_SUPPORT_OVERLAP_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace tfembed {

// Runs a batch over memory that is not in the cache. A key costs two misses,
// its bucket and its row, for one in ten a third; a core has some 24 misses
// under way at once, and one alone takes as long as 30 keys should. So every
// key goes through four stages, and between two of them many other keys have
// theirs:
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
// Overlap rolls over the batch in steps of 8 keys, its stages some 30 keys
// apart; InBlocks does one stage after the other, 128 keys at a time. Through
// TensorFlow, on Zen 3, in turns: finds take 0.92 of the time in blocks at 8
// floats (at 64 the same), upserts 1.13 at 8 floats; lookups of bags in hash
// tables 0.8 to 0.9. Blocks of 32 leave the memory idle too often, while the
// last bucket of one is awaited; from 64 to 128 there is no difference on
// Zen 3. On Zen 5 lookups of ~20 ids in blocks of 128 take 0.92 (16 floats) and
// 0.95 (64) of what they take in blocks of 64; blocks of 256 are slower again.
inline constexpr int64_t kOverlap = 128;
inline int Slot(int64_t i) { return static_cast<int>(i & (kOverlap - 1)); }

template <typename Ask, typename Find, typename Settle, typename Finish>
inline void InBlocks(int64_t n, Ask ask, Find find, Settle settle,
                     Finish finish) {
  constexpr int64_t kBlock = 128;
  static_assert(kBlock <= kOverlap);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    for (int64_t i = begin; i < end; ++i) ask(i);
    int64_t unsettled[kBlock];
    int num_unsettled = 0;
    for (int64_t i = begin; i < end; ++i) {
      unsettled[num_unsettled] = i;
      num_unsettled += !find(i);
    }
    for (int j = 0; j < num_unsettled; ++j) settle(unsettled[j]);
    for (int64_t i = begin; i < end; ++i) finish(i);
  }
}

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
  constexpr bool kSettlesAll = std::is_void_v<decltype(find(0))>;
  int64_t unsettled[kSettlesAll ? 1 : kOverlap];
  int64_t num_unsettled = 0;
  int64_t num_settled = 0;
  for (int64_t begin = 0; begin < n + kFinishAfter; begin += kStep) {
    step(begin, ask);
    if constexpr (kSettlesAll) {
      step(begin - kFindAfter, find);
      step(begin - kSettleAfter, settle);
    } else {
      step(begin - kFindAfter, [&](int64_t i) {
        unsettled[Slot(num_unsettled)] = i;
        num_unsettled += !find(i);
      });
      while (num_settled < num_unsettled &&
             unsettled[Slot(num_settled)] < begin - kSettleAfter + kStep) {
        settle(unsettled[Slot(num_settled++)]);
      }
    }
    step(begin - kFinishAfter, finish);
  }
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_OVERLAP_H_
