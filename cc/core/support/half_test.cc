#include "cc/core/support/half.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tfembed {
namespace {

// Tests of what both types share, against doubles and a search.
template <typename T>
class HalfTest : public testing::Test {
 protected:
  static constexpr uint32_t kInfinity =
      std::is_same_v<T, Half> ? 0x7c00 : 0x7f80;

  // The positive finite numbers, ascending.
  static const std::vector<double>& Numbers() {
    static const std::vector<double> numbers = [] {
      std::vector<double> values;
      for (uint32_t bits = 0; bits < kInfinity; ++bits) {
        values.push_back(T{static_cast<uint16_t>(bits)}.ToFloat());
      }
      return values;
    }();
    return numbers;
  }

  static double Largest() { return Numbers().back(); }
};

using Types = testing::Types<Half, Bfloat16>;
TYPED_TEST_SUITE(HalfTest, Types);

TYPED_TEST(HalfTest, AllNumbersComeBack) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const TypeParam number = {static_cast<uint16_t>(bits)};
    const float value = number.ToFloat();
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(TypeParam::Of(value).ToFloat()));
      EXPECT_TRUE(std::isnan(TypeParam::ByChance(value, 0xffff).ToFloat()));
      continue;
    }
    EXPECT_EQ(TypeParam::Of(value).bits, bits);
    for (uint16_t random : {0, 1, 0x8000, 0xffff}) {
      EXPECT_EQ(TypeParam::ByChance(value, random).bits, bits) << value;
    }
  }
}

TEST(Half, NumbersAreThoseOfTheStandard) {
  const std::map<uint16_t, float> expected = {
      {0x3c00, 1.0f},      {0xc000, -2.0f},     {0x7bff, 65504.0f},
      {0x0001, 0x1p-24f},  {0x0400, 0x1p-14f},  {0x03ff, 1023 * 0x1p-24f},
      {0x3555, 0.333252f}, {0x8001, -0x1p-24f},
  };
  for (const auto& [bits, value] : expected) {
    EXPECT_FLOAT_EQ(Half{bits}.ToFloat(), value);
  }
}

TYPED_TEST(HalfTest, OfTakesTheNearestAndOfTwoTheEvenOne) {
  const std::vector<double>& numbers = this->Numbers();
  for (size_t i = 0; i + 1 < numbers.size(); ++i) {
    const auto middle =
        static_cast<float>(numbers[i] + (numbers[i + 1] - numbers[i]) / 2);
    const float below = std::nextafter(middle, 0.0f);
    const float above = std::nextafter(middle, HUGE_VALF);
    if (!(below > numbers[i])) continue;  // No room between two floats.
    EXPECT_EQ(TypeParam::Of(below).bits, i);
    EXPECT_EQ(TypeParam::Of(middle).bits, i + i % 2);
    EXPECT_EQ(TypeParam::Of(above).bits, i + 1);
    EXPECT_EQ(TypeParam::Of(-above).bits, (i + 1) | 0x8000);
  }
}

TYPED_TEST(HalfTest, WhatIsTooLargeIsAnInfinity) {
  const double last = this->Largest() - this->Numbers().rbegin()[1];
  const auto kept = static_cast<float>(this->Largest() + last / 4);
  const auto lost = static_cast<float>(this->Largest() + last / 2);
  for (float sign : {1.0f, -1.0f}) {
    EXPECT_EQ(TypeParam::Of(sign * kept).ToFloat(), sign * this->Largest());
    EXPECT_TRUE(std::isinf(TypeParam::Of(sign * lost).ToFloat()));
    EXPECT_TRUE(std::isinf(TypeParam::Of(sign * HUGE_VALF).ToFloat()));
    // Chance makes no infinity of what is nearer to a number.
    EXPECT_EQ(TypeParam::ByChance(sign * kept, 0xffff).ToFloat(),
              sign * this->Largest());
    EXPECT_TRUE(std::isinf(TypeParam::ByChance(sign * lost, 0).ToFloat()));
    EXPECT_TRUE(std::isinf(TypeParam::ByChance(sign * HUGE_VALF, 0).ToFloat()));
  }
}

TYPED_TEST(HalfTest, OverAllRandomNumbersTheMeanIsRight) {
  const std::vector<double>& numbers = this->Numbers();
  const std::vector<size_t> starts = {
      0, 1, 7, 1000, 1023, 1024, 9000, 15360, 16000, numbers.size() - 2};
  for (size_t i : starts) {
    const double step = numbers[i + 1] - numbers[i];
    for (double share : {0.0, 1.0 / 8192, 0.25, 0.5, 0.875, 8191.0 / 8192}) {
      const auto value = static_cast<float>(numbers[i] + share * step);
      if (i == 0 && value < std::numeric_limits<float>::min()) continue;
      const double exact = (value - numbers[i]) / step;
      for (float sign : {1.0f, -1.0f}) {
        int64_t ups = 0;
        for (uint32_t random = 0; random < 1 << 16; ++random) {
          const auto rounded =
              TypeParam::ByChance(sign * value, static_cast<uint16_t>(random));
          ASSERT_EQ(rounded.bits >> 15, sign < 0);
          const size_t magnitude = rounded.bits & 0x7fff;
          ASSERT_TRUE(magnitude == i || magnitude == i + 1) << value;
          ups += magnitude != i;
        }
        EXPECT_NEAR(static_cast<double>(ups) / (1 << 16), exact, 0x1p-16)
            << value;
      }
    }
  }
}

}  // namespace
}  // namespace tfembed
