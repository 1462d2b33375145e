// ExportKeys and Contains.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

std::vector<int64_t> SortedKeys(const EmbeddingTable& table,
                                Executor* executor) {
  std::vector<int64_t> keys;
  const auto allocate = [&keys](int64_t n) -> absl::StatusOr<int64_t*> {
    keys.resize(n);
    return keys.data();
  };
  EXPECT_TRUE(table.ExportKeys(allocate, executor).ok());
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::unique_ptr<EmbeddingTable> TableOf(absl::Span<const int64_t> keys) {
  auto table = MakeTestTable(3);
  const std::vector<float> rows(keys.size() * 3, 1.0f);
  EXPECT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
  return table;
}

std::vector<int64_t> EveryThird(int64_t n) {
  std::vector<int64_t> keys(n);
  for (int64_t i = 0; i < n; ++i) keys[i] = 3 * i - n;
  return keys;
}

TEST(ExportKeys, GivesEachKeyOnce) {
  ThreadExecutor executor(4);
  const std::vector<int64_t> keys = EveryThird(20000);
  auto table = TableOf(keys);
  EXPECT_EQ(SortedKeys(*table, &executor), keys);
  EXPECT_EQ(SortedKeys(*table, nullptr), keys);
}

TEST(ExportKeys, OfAnEmptyTableGivesNone) {
  EXPECT_TRUE(SortedKeys(*MakeTestTable(2), nullptr).empty());
}

TEST(ExportKeys, PassesOnThatThereIsNoMemory) {
  auto table = TableOf({1});
  const auto allocate = [](int64_t) -> absl::StatusOr<int64_t*> {
    return absl::ResourceExhaustedError("no memory");
  };
  EXPECT_TRUE(absl::IsResourceExhausted(table->ExportKeys(allocate, nullptr)));
}

TEST(Contains, SaysWhichKeysAreThere) {
  ThreadExecutor executor(4);
  const int64_t n = 20000;
  auto table = TableOf(EveryThird(n));
  std::vector<int64_t> asked(3 * n);
  for (int64_t i = 0; i < 3 * n; ++i) asked[i] = i - n;
  std::unique_ptr<bool[]> exists(new bool[asked.size()]());
  table->Contains(asked, exists.get(), &executor);
  for (int64_t i = 0; i < 3 * n; ++i) ASSERT_EQ(exists[i], i % 3 == 0) << i;
}

TEST(Contains, FindsNothingInAnEmptyTable) {
  bool exists[2] = {true, true};
  MakeTestTable(2)->Contains({0, -1}, exists, nullptr);
  EXPECT_FALSE(exists[0] || exists[1]);
}

}  // namespace
}  // namespace tfembed
