#ifndef TFEMBED_CORE_ROW_FILTERS_H_
#define TFEMBED_CORE_ROW_FILTERS_H_

#include <cstdint>
#include <cstring>

#include "cc/core/scratch_buffer.h"

namespace tfembed {

// Which rows the segments of a batch have: three bits a row, all in one word.
// Of rows that a segment does not have it claims one in 570 where words have
// two rows, and one in 120 at four. (One bit in place of three claims one in 16
// at four, and what is left to the end then takes a thirtieth of a batch's
// time.)
class RowFilters {
 public:
  // For up to 8 segments. Throws std::bad_alloc.
  void Resize(int64_t segments, int64_t keys_of_each) {
    // A row is asked for in all segments before its own: two rows a word at
    // most if there are many, else four.
    const int64_t bits_per_key = segments < 4 ? 15 : 30;
    log_words_ = 1;
    while ((kWordBits << log_words_) < keys_of_each * bits_per_key) {
      ++log_words_;
    }
    words_.Resize(segments << log_words_);
  }

  void Clear(int64_t segment) {
    std::memset(words_.data() + (segment << log_words_), 0,
                sizeof(uint64_t) << log_words_);
  }

  void Add(int64_t segment, const float* row) {
    const uint64_t hash = Hash(row);
    words_.data()[(segment << log_words_) + Word(hash)] |= Bits(hash);
  }

  // Whether a segment before `segment` may have the row.
  bool IsBefore(int64_t segment, const float* row) const {
    const uint64_t hash = Hash(row);
    const uint64_t bits = Bits(hash);
    const uint64_t* const words = words_.data() + Word(hash);
    for (int64_t s = 0; s < segment; ++s) {
      if ((words[s << log_words_] & bits) == bits) return true;
    }
    return false;
  }

 private:
  static constexpr int64_t kWordBits = 64;

  static uint64_t Hash(const float* row) {
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio.
    return reinterpret_cast<uintptr_t>(row) * kOdd;
  }

  uint64_t Word(uint64_t hash) const { return hash >> (64 - log_words_); }

  // By bits of the hash that choose no word: log_words_ is far below 24.
  static uint64_t Bits(uint64_t hash) {
    constexpr uint64_t kOne = 1;
    return kOne << (hash >> 34) % kWordBits | kOne << (hash >> 28) % kWordBits |
           kOne << (hash >> 22) % kWordBits;
  }

  int log_words_ = 1;              // Of a segment.
  ScratchBuffer<uint64_t> words_;  // [segment, word]
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_ROW_FILTERS_H_
