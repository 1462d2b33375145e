#include "cc/core/policies/eviction.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<EvictionPolicy> Policy(const char* text) {
  auto policy = EvictionPolicy::Parse(text);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

Moment At(uint32_t step, uint32_t second) {
  Moment moment;
  moment.step = step;
  moment.second = second;
  return moment;
}

JudgedRow Noted(uint32_t word) { return {nullptr, {}, 0, word}; }

TEST(LeastRecent, CountsStepsSinceTheLastWrite) {
  auto policy = Policy("least_recent");
  const uint32_t word = policy->Touch(3, At(10, 99));
  EXPECT_EQ(policy->Worth(Noted(word), At(10, 500)), 0);
  EXPECT_EQ(policy->Worth(Noted(word), At(17, 500)), -7);
}

TEST(LeastRecent, CountsSeconds) {
  auto policy = Policy("least_recent seconds=1");
  const uint32_t word = policy->Touch(3, At(10, 99));
  EXPECT_EQ(policy->Worth(Noted(word), At(10, 500)), -401);
}

TEST(LeastFrequent, CountsWritesAndStaysAtTheLargestCount) {
  auto policy = Policy("least_frequent");
  EXPECT_EQ(policy->Touch(0, {}), 1u);
  EXPECT_EQ(policy->Worth(Noted(5), {}), 5);
  const uint32_t most = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(policy->Touch(most, {}), most);
}

TEST(LeastRecent, SavesHowManyStepsAgoARowWasWritten) {
  auto policy = Policy("least_recent");
  EXPECT_EQ(policy->notes(), "steps_ago");
  const uint32_t saved = policy->Saved(policy->Touch(0, At(10, 0)), At(17, 0));
  EXPECT_EQ(saved, 7u);
  // Into a table that is younger than the row.
  const uint32_t word = policy->Restored(saved, At(2, 0));
  EXPECT_EQ(policy->Worth(Noted(word), At(2, 0)), -7);
  EXPECT_EQ(policy->Worth(Noted(word), At(5, 0)), -10);
}

TEST(LeastRecent, SavesSecondsAsTheyAre) {
  auto policy = Policy("least_recent seconds=1");
  EXPECT_EQ(policy->notes(), "seconds_since_1970");
  EXPECT_EQ(policy->Saved(99, At(10, 500)), 99u);
  EXPECT_EQ(policy->Restored(99, At(0, 500)), 99u);
}

TEST(LeastFrequent, SavesWritesAsTheyAre) {
  auto policy = Policy("least_frequent");
  EXPECT_EQ(policy->notes(), "writes");
  EXPECT_EQ(policy->Saved(7, {}), 7u);
  EXPECT_EQ(policy->Restored(7, {}), 7u);
}

TEST(EvictionPolicy, TakesARowWithoutANoteForOneThatIsTouchedNow) {
  for (const char* text :
       {"least_recent", "least_recent seconds=1", "least_frequent"}) {
    auto policy = Policy(text);
    EXPECT_EQ(policy->Restored(0, At(3, 5)), policy->Touch(0, At(3, 5)));
  }
}

TEST(SmallestNorm, IsTheRowsNorm) {
  auto policy = Policy("smallest_norm");
  const float row[] = {3, -4};
  EXPECT_EQ(policy->Worth({row, {}, 2, 0}, {}), 5);
  EXPECT_EQ(policy->meta_words(), 0);
}

TEST(SmallestNorm, OfANaNIsTheLowest) {
  const float row[] = {std::numeric_limits<float>::quiet_NaN(), 9};
  EXPECT_EQ(Policy("smallest_norm")->Worth({row, {}, 2, 0}, {}), -1);
}

TEST(SmallestNorm, IsThatOfRowsOfAnyType) {
  using Kind = ElementKind;
  for (const Kind kind :
       {Kind::kFloat32, Kind::kFloat16, Kind::kBfloat16, Kind::kFloat64,
        Kind::kInt8, Kind::kInt32, Kind::kInt64, Kind::kBool}) {
    const ValueType type = kind;
    const double numbers[] = {3, 0, -4};
    char row[3 * sizeof(double)];
    type.FromDoubles(numbers, row, 3);
    EXPECT_EQ(Policy("smallest_norm")->Worth({row, type, 3, 0}, {}),
              kind == Kind::kBool ? std::sqrt(2.0) : 5)
        << type.name();
  }
}

TEST(EvictionPolicy, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"", "random", "least_frequent seconds=1",
                           "least_recent seconds=2", "smallest_norm p=1"}) {
    auto policy = EvictionPolicy::Parse(text);
    EXPECT_TRUE(absl::IsInvalidArgument(policy.status())) << text;
  }
  EXPECT_THAT(std::string(EvictionPolicy::Parse("x").status().message()),
              HasSubstr("the policies are"));
}

}  // namespace
}  // namespace tfembed
