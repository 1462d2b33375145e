#include "cc/core/support/has_nan.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kWidths[] = {1, 3, 4, 7, 8, 12, 16, 21, 64};

TEST(HasNan, FindsOneAtAnyPlace) {
  for (int64_t width : kWidths) {
    std::vector<float> row(width, 1.0f);
    EXPECT_FALSE(HasNan(row.data(), width));
    for (int64_t c = 0; c < width; ++c) {
      row[c] = NAN;
      EXPECT_TRUE(HasNan(row.data(), width)) << c << " of " << width;
      row[c] = INFINITY;
    }
    EXPECT_FALSE(HasNan(row.data(), width)) << "Infinities are numbers.";
  }
}

TEST(CopyRowHasNan, CopiesAllAndFindsOneAtAnyPlace) {
  for (int64_t width : kWidths) {
    std::vector<float> from(width);
    for (int64_t c = 0; c < width; ++c) from[c] = c + 0.5f;
    std::vector<float> to(width + 1, -1.0f);
    EXPECT_FALSE(CopyRowHasNan(from.data(), to.data(), width));
    for (int64_t c = 0; c < width; ++c) EXPECT_EQ(to[c], from[c]);
    EXPECT_EQ(to[width], -1.0f) << "Wrote past the row.";
    for (int64_t c = 0; c < width; ++c) {
      const float number = from[c];
      from[c] = NAN;
      EXPECT_TRUE(CopyRowHasNan(from.data(), to.data(), width));
      EXPECT_TRUE(std::isnan(to[c]));
      from[c] = number;
    }
  }
}

}  // namespace
}  // namespace tfembed
