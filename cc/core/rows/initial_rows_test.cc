#include "cc/core/rows/initial_rows.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Lt;

std::vector<float> Row(const InitialRows& rows, int64_t key) {
  std::vector<float> row(rows.dim());
  rows.Fill(key, row.data());
  return row;
}

InitialRows Make(const char* kind, std::vector<double> arguments, int64_t dim,
                 uint64_t seed = 1) {
  return *InitialRows::Create(kind, std::move(arguments), seed, dim);
}

struct Moments {
  double mean = 0;
  double stddev = 0;
  double kurtosis = 0;  // 3 in a normal distribution.
};

// Moments of 1M values: 16,384 rows of 64 columns.
Moments MomentsOf(const InitialRows& rows) {
  std::vector<float> values;
  for (int64_t key = 0; key < 16384; ++key) {
    const std::vector<float> row = Row(rows, key << 7);
    values.insert(values.end(), row.begin(), row.end());
  }
  Moments moments;
  for (float value : values) moments.mean += value;
  moments.mean /= values.size();
  double second = 0;
  double fourth = 0;
  for (float value : values) {
    const double square = std::pow(value - moments.mean, 2);
    second += square;
    fourth += square * square;
  }
  second /= values.size();
  moments.stddev = std::sqrt(second);
  moments.kurtosis = fourth / values.size() / (second * second);
  return moments;
}

TEST(InitialRows, ConstantsFillTheRow) {
  EXPECT_THAT(Row(Make("constant", {0.25f}, 33), 7), Each(0.25f));
}

TEST(InitialRows, VectorsAreTheRow) {
  EXPECT_THAT(Row(Make("vector", {1, 2, 3}, 3), -4), ElementsAre(1, 2, 3));
}

TEST(InitialRows, UniformValuesLieInRangeAndHaveItsMoments) {
  const InitialRows rows = Make("uniform", {-1, 3}, 64);
  EXPECT_THAT(Row(rows, 5), Each(AllOf(Ge(-1.0f), Lt(3.0f))));
  const Moments moments = MomentsOf(rows);
  EXPECT_NEAR(moments.mean, 1, 0.01);
  EXPECT_NEAR(moments.stddev, 4 / std::sqrt(12.0), 0.01);
  EXPECT_NEAR(moments.kurtosis, 1.8, 0.02);
}

TEST(InitialRows, UniformValuesNeverRoundUpToTheLimit) {
  const float low = 1;
  const float high = std::nextafter(low, 2.0f);
  EXPECT_THAT(Row(Make("uniform", {low, high}, 1000), 5), Each(low));
}

TEST(InitialRows, NormalValuesHaveTheirMoments) {
  const Moments moments = MomentsOf(Make("normal", {2, 0.5f}, 64));
  EXPECT_NEAR(moments.mean, 2, 0.003);
  EXPECT_NEAR(moments.stddev, 0.5, 0.003);
  EXPECT_NEAR(moments.kurtosis, 3, 0.03);
}

TEST(InitialRows, TruncatedNormalValuesStayWithinTwoDeviations) {
  const InitialRows rows = Make("truncated_normal", {1, 0.5f}, 64);
  for (int64_t key = 0; key < 1000; ++key) {
    ASSERT_THAT(Row(rows, key), Each(AllOf(Ge(0.0f), Le(2.0f))));
  }
  const Moments moments = MomentsOf(rows);
  EXPECT_NEAR(moments.mean, 1, 0.003);
  // The closed forms for a cut at 2.
  EXPECT_NEAR(moments.stddev, 0.5 * 0.87962566, 0.002);
  EXPECT_NEAR(moments.kurtosis, 2.365, 0.03);
}

class RandomKinds : public ::testing::TestWithParam<const char*> {};

TEST_P(RandomKinds, DependOnSeedKeyAndColumnAlone) {
  const InitialRows rows = Make(GetParam(), {0, 1}, 16);
  const std::vector<float> row = Row(rows, 42);
  Row(rows, 43);
  EXPECT_EQ(Row(rows, 42), row);
  EXPECT_EQ(Row(Make(GetParam(), {0, 1}, 16), 42), row);
  std::vector<float> wider = Row(Make(GetParam(), {0, 1}, 32), 42);
  wider.resize(16);
  EXPECT_EQ(wider, row);
}

TEST_P(RandomKinds, DifferWithSeedKeyAndColumn) {
  const std::vector<float> row = Row(Make(GetParam(), {0, 1}, 16), 42);
  EXPECT_NE(Row(Make(GetParam(), {0, 1}, 16, /*seed=*/2), 42), row);
  EXPECT_NE(Row(Make(GetParam(), {0, 1}, 16), 43), row);
  EXPECT_NE(row[0], row[1]);
}

TEST_P(RandomKinds, AreUncorrelatedFromKeyToKeyAndColumnToColumn) {
  const InitialRows rows = Make(GetParam(), {-1, 1}, 64);
  double next_key = 0;
  double next_column = 0;
  double square = 0;
  const double mean = MomentsOf(rows).mean;
  for (int64_t key = 0; key < 4000; ++key) {
    const std::vector<float> a = Row(rows, key);
    const std::vector<float> b = Row(rows, key + 1);
    for (int i = 0; i + 1 < 64; ++i) {
      square += (a[i] - mean) * (a[i] - mean);
      next_key += (a[i] - mean) * (b[i] - mean);
      next_column += (a[i] - mean) * (a[i + 1] - mean);
    }
  }
  EXPECT_NEAR(next_key / square, 0, 0.01);
  EXPECT_NEAR(next_column / square, 0, 0.01);
}

INSTANTIATE_TEST_SUITE_P(All, RandomKinds,
                         ::testing::Values("uniform", "normal",
                                           "truncated_normal"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

struct BadCase {
  const char* kind;
  std::vector<double> arguments;
  const char* message;
};

TEST(InitialRows, RefusesWrongKindsAndArguments) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<BadCase> cases = {
      {"glorot", {}, "Known: constant, vector, uniform"},
      {"constant", {}, "got 0 arguments"},
      {"vector",
       {1, 2, 3, 4, 5},
       "take 2 values; got 5 arguments: {1, 2, 3, 4, ...}"},
      {"uniform", {1, 1}, "low < high"},
      {"uniform", {0, nan}, "finite"},
      {"normal", {0, -1}, "stddev >= 0"},
      {"truncated_normal", {0}, "got 1 arguments: {0}"},
  };
  for (const BadCase& bad : cases) {
    const auto rows = InitialRows::Create(bad.kind, bad.arguments, 1, 2);
    EXPECT_EQ(rows.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(rows.status().message()), HasSubstr(bad.message));
  }
  EXPECT_EQ(InitialRows::Create("constant", {0}, 1, -1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tfembed
