#include "cc/core/table/embedding_table.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(EmbeddingTable, RefusesANegativeWidth) {
  auto initial_rows = InitialRows::Create("constant", {0}, 1, 1);
  EmbeddingTable::Options options;
  options.dim = -1;
  auto table = EmbeddingTable::Create(options, *initial_rows);
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("got -1"));
}

TEST(EmbeddingTable, KeepsKeysWithoutAValue) {
  auto table = MakeTestTable(/*dim=*/0);
  EXPECT_EQ(table->layout().width(), 1);  // Rows are at addresses.
  ASSERT_TRUE(table->Upsert({kMin, 7, 7}, nullptr, nullptr).ok());
  EXPECT_THAT(Exists(*table, {7, 8, kMin}), ElementsAre(1, 0, 1));
  ASSERT_TRUE(table->SetSlots({"adagrad", {"a"}, {0.5f}, /*row_wise=*/1}).ok());
  EXPECT_EQ(table->layout().width(), 2);
  EXPECT_EQ(table->layout().slot_begin(0), 1);
  float slot[] = {0, 0};
  ASSERT_TRUE(table->LookupTrained({7, 9}, 1, slot, nullptr).ok());
  EXPECT_THAT(slot, ElementsAre(0.5f, 0.5f));
}

TEST(EmbeddingTable, RefusesANegativeCapacity) {
  auto initial_rows = InitialRows::Create("constant", {0}, 1, 1);
  EmbeddingTable::Options options;
  options.dim = 1;
  options.initial_capacity = -5;
  auto table = EmbeddingTable::Create(options, *initial_rows);
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("got -5"));
}

TEST(EmbeddingTable, RefusesInitialRowsOfAnotherWidth) {
  auto initial_rows = InitialRows::Create("constant", {0}, 1, 3);
  EmbeddingTable::Options options;
  options.dim = 4;
  auto table = EmbeddingTable::Create(options, *initial_rows);
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EmbeddingTable, LooksUpInitialRowsOfMissingKeysAndInsertsNothing) {
  auto table = MakeTestTable(3, /*initial_value=*/0.5f);
  const std::vector<int64_t> keys = {7, 8};
  EXPECT_THAT(LookUp(*table, keys), Each(0.5f));
  EXPECT_THAT(Exists(*table, keys), ElementsAre(0, 0));
  EXPECT_EQ(table->size(), 0);
}

TEST(EmbeddingTable, TakesEmptyBatches) {
  auto table = MakeTestTable(3);
  table->Lookup({}, nullptr, nullptr, nullptr);
  EXPECT_TRUE(table->Upsert({}, nullptr, nullptr).ok());
  EXPECT_TRUE(table->Accum({}, nullptr, nullptr, nullptr, nullptr).ok());
  table->Remove({}, nullptr);
  EXPECT_EQ(table->size(), 0);
}

TEST(EmbeddingTable, ReservesNoKeyValue) {
  auto table = MakeTestTable(2);
  const std::vector<int64_t> keys = {kMin, kMax, 0, -1, -2, -3, kMin + 1};
  EXPECT_THAT(Exists(*table, keys), Each(0));
  ASSERT_TRUE(
      table->Upsert(keys, RowsOf({1, 2, 3, 4, 5, 6, 7}, 2).data(), nullptr)
          .ok());
  EXPECT_EQ(table->size(), 7);
  EXPECT_EQ(LookUp(*table, keys), RowsOf({1, 2, 3, 4, 5, 6, 7}, 2));
  table->Remove({0, kMin}, nullptr);
  EXPECT_THAT(Exists(*table, keys), ElementsAre(0, 1, 0, 1, 1, 1, 1));
}

TEST(EmbeddingTable, KeepsTheLastRowOfARepeatedKey) {
  ThreadExecutor executor(2);
  auto table = MakeTestTable(5);
  std::vector<int64_t> keys;
  std::vector<float> numbers;
  for (int i = 0; i < 10000; ++i) {
    keys.push_back(i % 7);
    numbers.push_back(i);
  }
  ASSERT_TRUE(table->Upsert(keys, RowsOf(numbers, 5).data(), &executor).ok());
  EXPECT_EQ(table->size(), 7);
  EXPECT_EQ(LookUp(*table, {9999 % 7, 9998 % 7, 9993 % 7}),
            RowsOf({9999, 9998, 9993}, 5));
}

TEST(EmbeddingTable, RepeatsOfAFewKeysTakeTheMemoryOfAFewKeys) {
  auto table = MakeTestTable(64);
  std::vector<int64_t> keys;
  for (int i = 0; i < 65536; ++i) keys.push_back(i % 10);
  const std::vector<float> rows(keys.size() * 64, 1.0f);
  ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
  EXPECT_LE(table->stats().index_bytes, 10 * 1024);
  EXPECT_LE(table->stats().row_bytes, 10 * 4 * 256);
}

TEST(EmbeddingTable, AccumAddsWhereBothKnowTheKeyAndInsertsWhereNeitherDoes) {
  auto table = MakeTestTable(2, /*initial_value=*/9);
  ASSERT_TRUE(table->Upsert({1, 2}, RowsOf({10, 20}, 2).data(), nullptr).ok());
  // Known and there; thought new but there; thought there but gone; new.
  const bool exists[] = {true, false, true, false};
  ASSERT_TRUE(table
                  ->Accum({1, 2, 3, 4}, RowsOf({1, 1, 1, 1}, 2).data(), nullptr,
                          exists, nullptr)
                  .ok());
  EXPECT_EQ(LookUp(*table, {1, 2, 3, 4}), RowsOf({11, 20, 9, 1}, 2));
  EXPECT_THAT(Exists(*table, {1, 2, 3, 4}), ElementsAre(1, 1, 0, 1));
}

TEST(EmbeddingTable, AccumAddsChangesOfOldValues) {
  for (const int64_t dim : {1, 8, 16, 40, 64, 100}) {
    auto table = MakeTestTable(dim);
    ASSERT_TRUE(
        table->Upsert({1, 2}, RowsOf({10, 20}, dim).data(), nullptr).ok());
    const bool exists[] = {true, false, true, false, true};
    ASSERT_TRUE(
        table
            ->Accum({1, 2, 3, 4, 1}, RowsOf({5, 5, 5, 5, 6}, dim).data(),
                    RowsOf({2, 2, 2, 2, 3}, dim).data(), exists, nullptr)
            .ok());
    EXPECT_EQ(LookUp(*table, {1, 2, 3, 4}), RowsOf({16, 20, 0, 5}, dim))
        << "dim " << dim;
  }
}

TEST(EmbeddingTable, AccumAddsRepeatsAndInsertsTheFirstOne) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->Upsert({1}, RowsOf({10}, 1).data(), nullptr).ok());
  const bool exists[] = {true, true, false, false};
  ASSERT_TRUE(table
                  ->Accum({1, 1, 2, 2}, RowsOf({1, 2, 3, 4}, 1).data(), nullptr,
                          exists, nullptr)
                  .ok());
  EXPECT_THAT(LookUp(*table, {1, 2}), ElementsAre(13, 3));
}

TEST(EmbeddingTable, RemoveIgnoresMissingAndRepeatedKeys) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->Upsert({1, 2}, RowsOf({1, 2}, 1).data(), nullptr).ok());
  table->Remove({3, 1, 1, 4}, nullptr);
  EXPECT_EQ(table->size(), 1);
  EXPECT_THAT(Exists(*table, {1, 2}), ElementsAre(0, 1));
}

TEST(EmbeddingTable, ClearEmptiesTheTableAndGivesTheMemoryBack) {
  auto table = MakeTestTable(8);
  std::vector<int64_t> keys(100000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const std::vector<float> rows(keys.size() * 8, 1.0f);
  ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
  table->Clear();
  EXPECT_EQ(table->size(), 0);
  EXPECT_EQ(table->stats().index_bytes, 0);
  EXPECT_EQ(table->stats().row_bytes, 0);
  EXPECT_THAT(Exists(*table, {0, 1, 99999}), Each(0));
  ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
  EXPECT_EQ(table->size(), 100000);
}

TEST(EmbeddingTable, ClearForEmptiesTheTableAndMakesRoom) {
  auto table = MakeTestTable(8);
  std::vector<int64_t> keys(100000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const std::vector<float> rows(keys.size() * 8, 1.0f);
  for (const int64_t room : {100000, 100000, 1000, 500000}) {
    ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
    ASSERT_TRUE(table->ClearFor(room).ok());
    EXPECT_EQ(table->size(), 0);
    EXPECT_EQ(table->stats().row_bytes, 0);
    EXPECT_GE(table->stats().capacity, room);
    EXPECT_THAT(Exists(*table, {0, 1, 99999}), Each(0));
  }
  ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
  EXPECT_EQ(table->size(), 100000);
}

TEST(EmbeddingTable, IsEmptyAndUsableWhereClearForFindsNoMemory) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->Upsert({1, 2}, RowsOf({1, 2}, 1).data(), nullptr).ok());
  EXPECT_EQ(table->ClearFor(int64_t{1} << 50).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table->size(), 0);
  EXPECT_EQ(table->stats().index_bytes, 0);
  ASSERT_TRUE(table->Upsert({1, 2}, RowsOf({1, 2}, 1).data(), nullptr).ok());
  EXPECT_THAT(Exists(*table, {1, 2, 3}), ElementsAre(1, 1, 0));
}

TEST(EmbeddingTable, InitialCapacityIsRoomForThatManyKeys) {
  auto table = MakeTestTable(1, 0, /*initial_capacity=*/100000);
  const TableStats before = table->stats();
  EXPECT_GE(before.capacity, 100000);
  std::vector<int64_t> keys(100000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const std::vector<float> rows(keys.size(), 1.0f);
  ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
  EXPECT_EQ(table->stats().capacity, before.capacity);
}

// Keys that pile up under weak hashes.
struct KeyPattern {
  const char* name;
  int64_t (*key)(int64_t i);
};

class KeyPatterns : public ::testing::TestWithParam<KeyPattern> {};

TEST_P(KeyPatterns, AreFoundInATableThatGrowsAndTakeAtMost24BytesEach) {
  constexpr int64_t kKeys = 1000000;
  constexpr int64_t kBatch = 50000;
  ThreadExecutor executor(2);
  auto table = MakeTestTable(1);
  std::vector<int64_t> keys(kKeys);
  std::vector<float> rows(kKeys);
  for (int64_t i = 0; i < kKeys; ++i) {
    keys[i] = GetParam().key(i);
    rows[i] = static_cast<float>(i);
  }
  for (int64_t begin = 0; begin < kKeys; begin += kBatch) {
    ASSERT_TRUE(table
                    ->Upsert(absl::MakeSpan(keys).subspan(begin, kBatch),
                             rows.data() + begin, &executor)
                    .ok());
  }
  EXPECT_EQ(table->size(), kKeys);
  EXPECT_EQ(LookUp(*table, keys, &executor), rows);
  const TableStats stats = table->stats();
  EXPECT_LE(stats.index_bytes + stats.row_bytes, kKeys * (4 + 24));
  EXPECT_GE(stats.capacity, kKeys);
}

INSTANTIATE_TEST_SUITE_P(
    All, KeyPatterns,
    ::testing::Values(
        KeyPattern{"Consecutive", [](int64_t i) { return i; }},
        KeyPattern{"Negative", [](int64_t i) { return -1 - i; }},
        KeyPattern{"Shifted", [](int64_t i) { return i << 20; }},
        KeyPattern{"FieldAndIndex",
                   [](int64_t i) { return ((i % 26) << 48) | (i / 26); }},
        KeyPattern{"TopBits", [](int64_t i) { return kMin + (i << 43); }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tfembed
