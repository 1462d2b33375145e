// Writes of rows to tables of bounded size, those that fail included.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/testing/address_limit.h"
#include "cc/core/testing/bounded_table.h"
#include "cc/core/testing/test_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

TEST(BoundedWrite, AnImportMayHaveMoreRows) {
  auto table = Bounded(100, "least_recent");
  std::vector<float> rows(1000 * table->full_width(), 1.0f);
  ASSERT_TRUE(
      table->Import(From(0, 1000), table->full_width(), rows.data(), nullptr)
          .ok());
  EXPECT_EQ(table->size(), 100);
  EXPECT_EQ(Exists(*table, From(900, 100)), All(100, true));
}

TEST(BoundedWrite, OfTooManyImportedRowsTheLastWrittenStay) {
  auto table = Bounded(3, "least_recent");
  const std::vector<int64_t> keys = {1, 2, 3, 4, 2, 4, 5, 4};
  std::vector<float> rows;
  for (size_t i = 0; i < keys.size(); ++i) rows.insert(rows.end(), 3, i);
  ASSERT_EQ(table->full_width(), 3);
  ASSERT_TRUE(table->Import(keys, 3, rows.data(), nullptr).ok());
  EXPECT_EQ(Exists(*table, {1, 2, 3, 4, 5}), std::vector<int>({0, 1, 0, 1, 1}));
  EXPECT_EQ(LookUp(*table, {2, 4, 5}), RowsOf({4, 7, 6}, kBoundedDim));
}

TEST(BoundedWrite, AWriteOfRowsOfAnotherWidthEvictsNothing) {
  auto table = Bounded(100, "least_recent");
  ASSERT_TRUE(Upsert(table.get(), From(0, 100)).ok());
  const std::vector<float> rows(500 * 9, 1.0f);
  for (const absl::Status& status :
       {table->Import(From(200, 50), 9, rows.data(), nullptr),
        table->Import(From(200, 500), 9, rows.data(), nullptr),
        table->WriteTrained(From(200, 50), 9, rows.data(), false, nullptr)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  }
  EXPECT_EQ(Exists(*table, From(0, 100)), All(100, true));
  EXPECT_EQ(table->use().evicted, 0);
}

#if TFEMBED_CAN_LIMIT_ADDRESSES

TEST(BoundedWrite, AWriteWithoutMemoryEvictsNothing) {
  constexpr int64_t kWide = 8192, kRows = 2000;
  auto table = Bounded(kRows, "least_recent", "", {}, kWide);
  const std::vector<float> rows(kRows * kWide, 1.0f);
  ASSERT_TRUE(table->Upsert(From(0, kRows), rows.data(), nullptr).ok());
  {
    const AddressLimit limit(int64_t{20} << 20);
    EXPECT_TRUE(absl::IsResourceExhausted(
        table->Upsert(From(kRows, kRows), rows.data(), nullptr)));
  }
  EXPECT_EQ(Exists(*table, From(0, kRows)), All(kRows, true));
  EXPECT_EQ(table->use().evicted, 0);
}

#endif

TEST(BoundedWrite, AccumEvictsForWhatItInsertsOnly) {
  auto table = Bounded(2, "least_recent");
  ASSERT_TRUE(Upsert(table.get(), {1, 2}).ok());
  const float ones[] = {1, 1, 1, 1};
  const bool exists[] = {true, true};
  ASSERT_TRUE(table->Accum({7, 8}, ones, nullptr, exists, nullptr).ok());
  EXPECT_EQ(Exists(*table, {1, 2}), All(2, true));
  const bool missing[] = {false, true};
  ASSERT_TRUE(table->Accum({7, 2}, ones, nullptr, missing, nullptr).ok());
  EXPECT_EQ(Exists(*table, {7, 2}), All(2, true));
  EXPECT_EQ(table->size(), 2);
}

}  // namespace
}  // namespace tfembed
