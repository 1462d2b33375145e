#include "cc/core/policies/admission.h"

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/core/support/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<AdmissionFilter> Filter(const std::string& text) {
  auto policy = AdmissionPolicy::Parse(text);
  EXPECT_TRUE(policy.ok()) << policy.status();
  auto filter = (*policy)->NewFilter(1);
  EXPECT_TRUE(filter.ok()) << filter.status();
  EXPECT_TRUE((*filter)->Reserve(50000).ok());
  return *std::move(filter);
}

bool Admit(AdmissionFilter* filter, int64_t key) {
  const bool foretold = filter->WouldAdmit(HashKey(key), key);
  const bool admitted = filter->Admit(HashKey(key), key);
  EXPECT_EQ(admitted, foretold) << key;
  return admitted;
}

class AnyFilter : public testing::TestWithParam<const char*> {};

TEST_P(AnyFilter, AdmitsAKeyWhenItWasSeenOftenEnough) {
  auto filter = Filter(GetParam());
  for (int64_t key : {0, -1, 7}) {
    EXPECT_FALSE(Admit(filter.get(), key));
    EXPECT_FALSE(Admit(filter.get(), key));
    EXPECT_TRUE(Admit(filter.get(), key));
  }
}

TEST(CountAdmission, DoesNotCountAKeyForWhichNoRoomWasKept) {
  auto filter = (*AdmissionPolicy::Parse("count seen=2"))->NewFilter(1);
  for (int round = 0; round < 2; ++round) {
    for (int64_t key = 0; key < 20; ++key) {
      EXPECT_FALSE((*filter)->Admit(HashKey(key), key));
    }
  }
  EXPECT_EQ((*filter)->num_waiting(), 0);
  ASSERT_TRUE((*filter)->Reserve(1).ok());
  EXPECT_FALSE((*filter)->Admit(HashKey(3), 3));
  EXPECT_TRUE((*filter)->Admit(HashKey(3), 3));
}

TEST_P(AnyFilter, ForgetsOnClear) {
  auto filter = Filter(GetParam());
  for (int i = 0; i < 2; ++i) Admit(filter.get(), 5);
  filter->Clear();
  ASSERT_TRUE(filter->Reserve(1).ok());
  EXPECT_FALSE(Admit(filter.get(), 5));
}

TEST_P(AnyFilter, NeverAdmitsLaterThanItShould) {
  auto filter = Filter(GetParam());
  std::unordered_map<int64_t, int> seen;
  for (int64_t i = 0; i < 60000; ++i) {
    const int64_t key = static_cast<int64_t>(HashKey(i) % 9000);
    if (Admit(filter.get(), key)) {
      seen[key] = 0;
    } else {
      ASSERT_LT(++seen[key], 3) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, AnyFilter,
                         testing::Values("count seen=3",
                                         "bloom seen=3 capacity=20000"));

TEST(CountAdmission, IsExact) {
  auto filter = Filter("count seen=2");
  for (int64_t key = 0; key < 50000; ++key) {
    ASSERT_FALSE(Admit(filter.get(), key)) << key;
  }
  for (int64_t key = 0; key < 50000; ++key) {
    ASSERT_TRUE(Admit(filter.get(), key)) << key;
  }
  EXPECT_FALSE(Admit(filter.get(), 0));  // Forgotten with its admission.
}

TEST(BloomAdmission, AdmitsEarlyNoMoreOftenThanItsErrorRate) {
  for (const double rate : {0.1, 0.01}) {
    auto filter = Filter("bloom seen=2 capacity=20000 error_rate=" +
                         std::to_string(rate));
    int64_t early = 0;
    for (int64_t key = 0; key < 20000; ++key) {
      if (Admit(filter.get(), key * 977)) ++early;
    }
    // The rate holds for the last key; the average is far below.
    EXPECT_LE(early, 20000 * rate) << rate;
  }
}

TEST(BloomAdmission, StaysAsSmallAsItIs) {
  auto filter = Filter("bloom seen=2 capacity=10000 error_rate=0.01");
  const int64_t bytes = filter->bytes();
  EXPECT_GT(bytes, 9.5 * 10000);
  EXPECT_LT(bytes, 10.5 * 10000);
  for (int64_t key = 0; key < 30000; ++key) Admit(filter.get(), key);
  EXPECT_EQ(filter->bytes(), bytes);
}

TEST(AdmissionPolicy, RefusesWhatItDoesNotKnow) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "the policies are"},
      {"often seen=3", "`often`"},
      {"count", "`seen`"},
      {"count seen=0", "`seen`"},
      {"count seen=1.5", "`seen`"},
      {"count seen=2 capacity=7", "`capacity`"},
      {"bloom seen=256 capacity=7", "1 to 255"},
      {"bloom seen=3", "`capacity`"},
      {"bloom seen=3 capacity=7 error_rate=0", "`error_rate`"},
  };
  for (const auto& [text, part] : cases) {
    auto policy = AdmissionPolicy::Parse(text);
    EXPECT_TRUE(absl::IsInvalidArgument(policy.status())) << text;
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr(part));
  }
}

}  // namespace
}  // namespace tfembed
