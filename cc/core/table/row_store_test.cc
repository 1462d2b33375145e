#include "cc/core/table/row_store.h"

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tfembed {
namespace {

std::unique_ptr<RowStore> MakeStore(int64_t width) {
  auto store = RowStore::Create(width);
  EXPECT_TRUE(store.ok());
  return *std::move(store);
}

// Takes `rows` rows and returns the first one's number.
uint32_t TakeRows(RowStore* store, int64_t rows) {
  EXPECT_TRUE(store->Promise(rows).ok());
  const auto first = static_cast<uint32_t>(store->num_rows());
  while (store->num_rows() < first + rows) {
    store->Take(first + rows - store->num_rows());
  }
  store->Withdraw(rows);
  return first;
}

TEST(RowStore, HandsOutRowsThatDoNotOverlap) {
  auto store = MakeStore(3);
  EXPECT_EQ(TakeRows(store.get(), 10), 0u);
  EXPECT_EQ(TakeRows(store.get(), 10), 10u);
  EXPECT_EQ(store->num_rows(), 20);
  for (uint32_t row = 1; row < 20; ++row) {
    EXPECT_EQ(store->Row(row) - store->Row(row - 1), 3);
  }
}

TEST(RowStore, KeepsRowsInPlaceWhileItGrowsOverManySlabs) {
  constexpr int64_t kWidth = 1 << 16;  // 256 KiB a row: 128 rows a slab.
  auto store = MakeStore(kWidth);
  TakeRows(store.get(), 1);
  float* const address = store->Row(0);
  *address = 7;
  TakeRows(store.get(), 999);
  EXPECT_EQ(store->Row(0), address);
  EXPECT_EQ(*store->Row(0), 7);
  *(store->Row(999) + kWidth - 1) = 8;
}

TEST(RowStore, KeepsPromisesToAllWhileSomeTakeMoreThanTheyWerePromised) {
  constexpr int64_t kWidth = 1 << 16;
  auto store = MakeStore(kWidth);
  ASSERT_TRUE(store->Promise(100).ok());
  ASSERT_TRUE(store->Promise(28).ok());  // Together the first slab.
  std::set<uint32_t> rows;
  for (int i = 0; i < 128; ++i) {
    const RowRange range = store->Take(50);
    EXPECT_EQ(range.size(), 1);  // The rest is promised to others.
    EXPECT_TRUE(rows.insert(range.begin).second);
    *store->Row(range.begin) = 1;
  }
}

TEST(RowStore, WidensAndNarrowsRowsAndKeepsWhatTheyHold) {
  constexpr int64_t kWidth = 1 << 12;  // 2,048 rows a slab.
  auto store = MakeStore(kWidth);
  TakeRows(store.get(), 5000);
  for (uint32_t row = 0; row < 5000; row += 999) {
    store->Row(row)[0] = row;
    store->Row(row)[kWidth - 1] = row + 1;
  }
  const std::vector<float> words = {1, 2, 3};
  ASSERT_TRUE(store->Replace(kWidth - 1, 0, words).ok());
  EXPECT_EQ(store->width(), kWidth + 3);
  for (uint32_t row = 0; row < 5000; row += 999) {
    EXPECT_EQ(store->Row(row)[0], row);
    EXPECT_EQ(store->Row(row)[kWidth - 1], 1);
    EXPECT_EQ(store->Row(row)[kWidth + 1], 3);
    EXPECT_EQ(store->Row(row)[kWidth + 2], row + 1);
  }
  ASSERT_TRUE(store->Replace(kWidth - 1, 3, {}).ok());
  EXPECT_EQ(store->width(), kWidth);
  for (uint32_t row = 0; row < 5000; row += 999) {
    EXPECT_EQ(store->Row(row)[0], row);
    EXPECT_EQ(store->Row(row)[kWidth - 1], row + 1);
  }
}

TEST(RowStore, ClearTakesAllRowsBack) {
  auto store = MakeStore(4);
  TakeRows(store.get(), 1000);
  *store->Row(0) = 5;
  store->Clear();
  EXPECT_EQ(store->num_rows(), 0);
  EXPECT_EQ(TakeRows(store.get(), 5), 0u);
  EXPECT_EQ(*store->Row(0), 0);
}

TEST(RowStore, ClearKeepsTheMemoryOfSomeRows) {
  constexpr int64_t kSlab = int64_t{32} << 20;  // 2^17 rows of 64 words.
  auto store = MakeStore(64);
  constexpr int64_t kRowsOfSlab = kSlab / 256;
  TakeRows(store.get(), 2 * kRowsOfSlab + 5);
  *store->Row(7) = 5;
  const float* const first = store->Row(7);
  store->Clear(kRowsOfSlab);
  EXPECT_EQ(store->num_rows(), 0);
  EXPECT_EQ(TakeRows(store.get(), 3 * kRowsOfSlab), 0u);
  EXPECT_EQ(store->Row(7), first);
  EXPECT_EQ(*store->Row(7), 5);                // The same memory,
  EXPECT_EQ(*store->Row(kRowsOfSlab + 7), 0);  // and new one.
}

TEST(RowStore, RefusesMoreRowsThan32BitNumbersCount) {
  auto store = MakeStore(1);  // 16 GiB of addresses, none of them touched.
  ASSERT_TRUE(store->Promise(RowStore::kMaxRows).ok());
  EXPECT_EQ(store->Promise(1).status().code(),
            absl::StatusCode::kResourceExhausted);
  store->Withdraw(RowStore::kMaxRows);
  EXPECT_TRUE(store->Promise(1).ok());
}

TEST(RowPool, TakesReturnedRowsFirst) {
  auto store = MakeStore(1);
  ASSERT_TRUE(store->Promise(100).ok());
  RowPool pool;
  std::set<uint32_t> taken;
  for (int i = 0; i < 100; ++i) taken.insert(pool.Take(store.get()));
  EXPECT_EQ(taken.size(), 100u);
  pool.Return(17);
  pool.Return(3);
  EXPECT_EQ(pool.Take(store.get()), 3u);
  EXPECT_EQ(pool.Take(store.get()), 17u);
}

TEST(RowPool, GivesRowsAwayButForThoseItKeeps) {
  auto store = MakeStore(1);
  ASSERT_TRUE(store->Promise(100).ok());
  RowPool pool, spare;
  for (uint32_t row = 1000; row < 1010; ++row) pool.Return(row);
  pool.MoveTo(&spare, /*wanted=*/4, /*kept=*/0);
  EXPECT_EQ(spare.available(), 4);
  pool.MoveTo(&spare, /*wanted=*/100, /*kept=*/3);
  EXPECT_EQ(spare.available(), 7);
  EXPECT_EQ(pool.available(), 3);
}

TEST(RowPool, FillsFromSpareRowsFirstAndTakesNoMoreThanItNeeds) {
  auto store = MakeStore(1);
  ASSERT_TRUE(store->Promise(100).ok());
  RowPool pool, spare;
  spare.Return(1000);
  pool.Take(store.get());  // Leaves some of a range.
  const int64_t before = store->num_rows();
  const int64_t in_hand = pool.available();
  pool.Fill(in_hand + 11, &spare, store.get());
  EXPECT_EQ(spare.available(), 0);
  EXPECT_EQ(pool.available(), in_hand + 11);
  EXPECT_EQ(store->num_rows(), before + 10);
  std::set<uint32_t> taken;
  for (int i = 0; i < in_hand + 11; ++i) taken.insert(pool.Take(store.get()));
  EXPECT_EQ(static_cast<int64_t>(taken.size()), in_hand + 11);
}

TEST(RowPool, HasNoMoreThanAnEighthOfItsRowsInHand) {
  auto store = MakeStore(1);
  ASSERT_TRUE(store->Promise(100000).ok());
  RowPool pool;
  for (int64_t rows = 1; rows <= 100000; ++rows) {
    pool.Take(store.get());
    ASSERT_LE(pool.available(), 4 + rows / 8) << rows;
  }
}

}  // namespace
}  // namespace tfembed
