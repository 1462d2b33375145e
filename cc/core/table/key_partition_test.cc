#include "cc/core/table/key_partition.h"

#include <cstdint>
#include <vector>

#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

TEST(KeyPartition, DealsEveryKeyOnceToItsStripeInTheOrderOfTheBatch) {
  for (int threads : {1, 3}) {
    ThreadExecutor executor(threads);
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < 50000; ++i) keys.push_back(i * i % 7919);
    auto partition = KeyPartition::Create(keys, &executor);
    ASSERT_TRUE(partition.ok());
    int64_t dealt = 0;
    for (int stripe = 0; stripe < kNumStripes; ++stripe) {
      const KeyGroup group = partition->group(stripe);
      for (int64_t i = 0; i < group.size; ++i) {
        ASSERT_EQ(StripeOf(HashKey(group.keys[i])), stripe);
        ASSERT_EQ(keys[group.positions[i]], group.keys[i]);
        if (i > 0) {
          ASSERT_LT(group.positions[i - 1], group.positions[i]);
        }
      }
      dealt += group.size;
    }
    EXPECT_EQ(dealt, 50000);
  }
}

TEST(KeyPartition, OfNoKeysHasEmptyGroups) {
  auto partition = KeyPartition::Create({}, nullptr);
  ASSERT_TRUE(partition.ok());
  for (int stripe = 0; stripe < kNumStripes; ++stripe) {
    EXPECT_EQ(partition->group(stripe).size, 0);
  }
}

TEST(KeyPartition, RefusesMoreKeysThanItCanNumber) {
  const absl::Span<const int64_t> keys(nullptr, size_t{1} << 32);
  EXPECT_EQ(KeyPartition::Create(keys, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tfembed
