#include "cc/core/rows/row_rounding.h"

#include <algorithm>
#include <cstring>

#include "cc/core/support/hash.h"
#include "cc/core/support/keyed_random.h"

namespace tfembed {
namespace {

constexpr uint64_t kSalt = 0xbb67ae8584caa73bULL;  // sqrt(3): no initial row's.
constexpr int64_t kBlock = 64;                     // Numbers at a time.
constexpr int64_t kPerDraw = 4;                    // Numbers of 16 bits.

}  // namespace

RowRounding::RowRounding(ValueType type, uint64_t seed, uint64_t step)
    : type_(type), by_chance_(true), seed_(MixBits(seed ^ kSalt) + step) {}

void RowRounding::Round(const float* from, int64_t n, int64_t key,
                        uint64_t occurrence, void* row) const {
  if (!by_chance_) {
    type_.FromFloats(from, row, n);
    return;
  }
  const KeyedRandom random(seed_, key);
  uint64_t draw = occurrence << 32;
  uint64_t draws[kBlock / kPerDraw];
  uint16_t bits[kBlock];
  static_assert(sizeof(draws) == sizeof(bits));
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    for (int64_t i = 0; i * kPerDraw < size; ++i)
      draws[i] = random.Bits(draw++);
    std::memcpy(bits, draws, sizeof(bits));
    type_.RoundByBits(from + begin, bits,
                      static_cast<char*>(row) + begin * type_.size(), size);
  }
}

}  // namespace tfembed
