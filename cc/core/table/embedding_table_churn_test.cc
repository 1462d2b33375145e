// Keys that come and go.
#include <cstdint>
#include <vector>

#include "cc/core/testing/test_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

TEST(Churn, KeepsMemoryFlat) {
  constexpr int64_t kLive = 50000;
  constexpr int64_t kStep = 5000;
  auto table = MakeTestTable(8);
  std::vector<int64_t> keys(kStep);
  const std::vector<float> rows(kStep * 8, 1.0f);
  TableStats settled;
  for (int64_t round = 0; round < 200; ++round) {
    for (int64_t i = 0; i < kStep; ++i) keys[i] = round * kStep + i;
    ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
    for (int64_t& key : keys) key -= kLive;
    table->Remove(keys, nullptr);
    if (round == 20) settled = table->stats();
  }
  const TableStats stats = table->stats();
  EXPECT_EQ(stats.size, kLive);
  // A stripe keeps room for the most keys that chance ever gave it.
  EXPECT_LE(stats.row_bytes, settled.row_bytes * 1.15);
  EXPECT_LE(stats.index_bytes, settled.index_bytes * 1.25);
}

}  // namespace
}  // namespace tfembed
