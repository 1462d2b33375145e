#ifndef TFEMBED_BENCHMARKS_TABLE_NEIGHBOR_HASH_H_
#define TFEMBED_BENCHMARKS_TABLE_NEIGHBOR_HASH_H_

#include <algorithm>
#include <cstdint>
#include <vector>

// A hash table of a fixed size for batches of finds, by the idea of the paper
// on NeighborHash, "A Faster HashTable and Key-Value Store Serving in
// Recommendation System", on a page:
//
// Places of 16 bytes hold a key and a word: the row's number (52 bits) and the
// signed distance to the next place of its chain (12 bits; 0: the last one).
// Keys of one home are one chain, which begins at home. A key that lodges at
// another key's home moves on when that key comes, so a search for a key that
// is missing reads its home and ends. A new key goes into the line of its
// chain's end, or as near to it as there is room, before or behind it.
//
// Finds go through a batch in blocks: a search that leaves a line asks for the
// next one, and the others of the block go on meanwhile.
//
// Not a part of the product.
class NeighborHash {
 public:
  struct Place {
    int64_t key;
    uint64_t word;
  };
  static constexpr int64_t kNoRow = -1;
  static constexpr int kBlock = 64;  // Keys of a block.

  // `places`: zeros, `size` of them. REQUIRES: no key is 0.
  NeighborHash(Place* places, int64_t size) : places_(places), size_(size) {}

  // False where no free place is near enough. REQUIRES: the key is new.
  bool Insert(int64_t key, int64_t row) {
    int64_t at = Home(key);
    if (places_[at].key != 0 && Home(places_[at].key) != at && !MoveOn(at)) {
      return false;
    }
    if (places_[at].key == 0) return Put(at, key, row, 0);
    while (Distance(at) != 0) at += Distance(at);
    const int64_t free = FreeNear(at, at, at);
    if (free < 0) return false;
    SetDistance(at, free - at);
    return Put(free, key, row, 0);
  }

  // rows[i]: of keys[i], or kNoRow; `ask(row)` is called for each that is
  // found.
  template <typename Ask>
  void FindBlock(const int64_t* keys, int n, int64_t* rows, Ask ask) const {
    int64_t at[kBlock];
    int waiting[kBlock];
    for (int i = 0; i < n; ++i) {
      at[i] = Home(keys[i]);
      waiting[i] = i;
      __builtin_prefetch(&places_[at[i]]);
    }
    for (int left = n; left > 0;) {
      int still = 0;
      for (int w = 0; w < left; ++w) {
        const int i = waiting[w];
        rows[i] = FindInLine(keys[i], &at[i]);
        if (rows[i] == kElsewhere) {
          __builtin_prefetch(&places_[at[i]]);
          waiting[still++] = i;
        } else if (rows[i] != kNoRow) {
          ask(rows[i]);
        }
      }
      left = still;
    }
  }

 private:
  static constexpr int64_t kElsewhere = -2;
  static constexpr int64_t kFar = 2047;
  static constexpr int64_t kLinePlaces = 4;

  static uint64_t Mix(uint64_t x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
  }
  int64_t Home(int64_t key) const {
    return static_cast<int64_t>(
        static_cast<unsigned __int128>(Mix(key)) * size_ >> 64);
  }
  int64_t Distance(int64_t at) const {
    return static_cast<int64_t>(places_[at].word) >> 52;
  }
  void SetDistance(int64_t at, int64_t distance) {
    uint64_t& word = places_[at].word;
    word = (word & kRowMask) | static_cast<uint64_t>(distance) << 52;
  }
  bool Put(int64_t at, int64_t key, int64_t row, int64_t distance) {
    places_[at] = {key, static_cast<uint64_t>(row)};
    SetDistance(at, distance);
    return true;
  }

  // The free place nearest to `at` that is not too far from two others.
  int64_t FreeNear(int64_t at, int64_t before, int64_t behind) const {
    const auto fits = [&](int64_t p) {
      return p >= 0 && p < size_ && places_[p].key == 0 &&
             std::abs(p - before) <= kFar && std::abs(p - behind) <= kFar;
    };
    const int64_t line = at / kLinePlaces * kLinePlaces;
    for (int64_t p = line; p < line + kLinePlaces; ++p) {
      if (fits(p)) return p;
    }
    for (int64_t d = 1; d <= kFar; ++d) {
      if (fits(at + d)) return at + d;
      if (fits(at - d)) return at - d;
    }
    return -1;
  }

  // Moves the key at `at`, which lodges there, to another place of its chain.
  bool MoveOn(int64_t at) {
    int64_t before = Home(places_[at].key);
    while (before + Distance(before) != at) before += Distance(before);
    const int64_t next = Distance(at) == 0 ? before : at + Distance(at);
    const int64_t free = FreeNear(before, before, next);
    if (free < 0) return false;
    const int64_t rest = Distance(at) == 0 ? 0 : next - free;
    Put(free, places_[at].key, places_[at].word & kRowMask, rest);
    SetDistance(before, free - before);
    places_[at] = {0, 0};
    return true;
  }

  // Goes along the chain from *at to the line's end.
  int64_t FindInLine(int64_t key, int64_t* at) const {
    for (int64_t p = *at;;) {
      if (places_[p].key == key) return places_[p].word & kRowMask;
      const int64_t distance = Distance(p);
      if (distance == 0) return kNoRow;
      if ((p + distance) / kLinePlaces != p / kLinePlaces) {
        *at = p + distance;
        return kElsewhere;
      }
      p += distance;
    }
  }

  static constexpr uint64_t kRowMask = (uint64_t{1} << 52) - 1;

  Place* const places_;
  const int64_t size_;
};

#endif  // TFEMBED_BENCHMARKS_TABLE_NEIGHBOR_HASH_H_
