#include "cc/core/support/keyed_random.h"

#include <cmath>
#include <cstdint>
#include <set>

#include "gtest/gtest.h"

namespace tfembed {
namespace {

// The share of a standard normal distribution that lies below `value`.
double NormalShare(double value) {
  return 0.5 * std::erfc(-value / std::sqrt(2.0));
}

TEST(NormalQuantile, InvertsTheNormalDistribution) {
  for (double value = -8; value <= 5; value += 0.01) {
    const double share = NormalShare(value);
    // Above the median the share itself rounds at 1e-16.
    const double density = std::exp(-value * value / 2) / std::sqrt(2 * M_PI);
    EXPECT_NEAR(NormalQuantile(share), value, 1e-13 + 3e-16 / density) << value;
  }
}

TEST(NormalQuantile, IsOddAroundTheMedian) {
  EXPECT_EQ(NormalQuantile(0.5), 0);
  EXPECT_EQ(NormalQuantile(0.25), -NormalQuantile(0.75));
  EXPECT_EQ(NormalQuantile(0x1p-20), -NormalQuantile(1 - 0x1p-20));
}

TEST(KeyedRandom, GivesEverySeedKeyAndCounterBitsOfItsOwn) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (int64_t key = -5; key < 5; ++key) {
      const KeyedRandom random(seed, key);
      for (uint64_t counter = 0; counter < 100; ++counter) {
        EXPECT_TRUE(seen.insert(random.Bits(counter)).second);
      }
    }
  }
}

TEST(KeyedRandom, SetsEveryBitHalfOfTheTime) {
  int counts[64] = {};
  for (int64_t key = 0; key < 20000; ++key) {
    const uint64_t bits = KeyedRandom(7, key).Bits(3);
    for (int bit = 0; bit < 64; ++bit) counts[bit] += (bits >> bit) & 1;
  }
  for (int count : counts) EXPECT_NEAR(count, 10000, 400);
}

TEST(KeyedRandom, UniformValuesLieInsideTheUnitInterval) {
  const KeyedRandom random(1, 2);
  for (uint64_t counter = 0; counter < 10000; ++counter) {
    const double value = random.Uniform(counter);
    ASSERT_GT(value, 0);
    ASSERT_LT(value, 1);
  }
}

}  // namespace
}  // namespace tfembed
