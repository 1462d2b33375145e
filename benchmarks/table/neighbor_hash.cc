// NeighborHash with rows in an array, called through ctypes. Keys are dealt to
// threads by their position in a batch; a table that is read needs no lock.

#include "neighbor_hash.h"

#include <cstring>
#include <thread>
#include <vector>

namespace {

void FindPart(const NeighborHash& index, const float* rows, int64_t width,
              const int64_t* keys, int64_t n, float* values) {
  int64_t found[NeighborHash::kBlock];
  const size_t bytes = width * sizeof(float);
  for (int64_t begin = 0; begin < n; begin += NeighborHash::kBlock) {
    const int m =
        static_cast<int>(std::min<int64_t>(NeighborHash::kBlock, n - begin));
    index.FindBlock(keys + begin, m, found, [&](int64_t row) {
      for (int64_t c = 0; c < width; c += 16) {
        __builtin_prefetch(rows + row * width + c);
      }
    });
    for (int i = 0; i < m; ++i) {
      float* const to = values + (begin + i) * width;
      if (found[i] == NeighborHash::kNoRow) {
        std::memset(to, 0, bytes);
      } else {
        std::memcpy(to, rows + found[i] * width, bytes);
      }
    }
  }
}

}  // namespace

extern "C" {

// Inserts keys[i] with row i; returns how many before there was no room.
int64_t neighbor_insert(void* places, int64_t size, const int64_t* keys,
                        int64_t n) {
  NeighborHash index(static_cast<NeighborHash::Place*>(places), size);
  for (int64_t i = 0; i < n; ++i) {
    if (!index.Insert(keys[i], i)) return i;
  }
  return n;
}

void neighbor_find(void* places, int64_t size, const float* rows, int64_t width,
                   const int64_t* keys, int64_t n, float* values, int threads) {
  const NeighborHash index(static_cast<NeighborHash::Place*>(places), size);
  const auto part = [&](int64_t t) {
    const int64_t begin = n * t / threads, end = n * (t + 1) / threads;
    FindPart(index, rows, width, keys + begin, end - begin,
             values + begin * width);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(part, t);
  part(0);
  for (auto& other : others) other.join();
}

}  // extern "C"
