// Slots, Visit, Export, Import.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::HasSubstr;

using Rows = std::map<int64_t, std::vector<float>>;

SlotLayout Adam() { return {"adam", {"m", "v"}, {0.25f, 0.5f}}; }

// Keys 0 .. n - 1, row of key k filled with k.
void FillTable(EmbeddingTable* table, int64_t n) {
  std::vector<int64_t> keys(n);
  std::vector<float> numbers(n);
  for (int64_t i = 0; i < n; ++i) numbers[i] = keys[i] = i;
  ASSERT_TRUE(
      table->Upsert(keys, RowsOf(numbers, table->dim()).data(), nullptr).ok());
}

Rows VisitedRows(const EmbeddingTable& table, int64_t chunk_rows) {
  Rows rows;
  const int64_t width = table.full_width();
  ThreadExecutor executor(2);
  const absl::Status status = table.Freeze()->Visit(
      chunk_rows,
      [&](absl::Span<const int64_t> keys, const float* full_rows) {
        EXPECT_LE(static_cast<int64_t>(keys.size()), chunk_rows);
        for (size_t i = 0; i < keys.size(); ++i) {
          const float* row = full_rows + i * width;
          EXPECT_TRUE(
              rows.emplace(keys[i], std::vector<float>(row, row + width))
                  .second)
              << keys[i];
        }
        return absl::OkStatus();
      },
      &executor);
  EXPECT_TRUE(status.ok());
  return rows;
}

TEST(Slots, AreLaidOutInPresentAndNewRows) {
  auto table = MakeTestTable(3);
  FillTable(table.get(), 20000);
  table->Remove({5}, nullptr);
  ASSERT_TRUE(table->SetSlots(Adam()).ok());
  FillTable(table.get(), 6);
  EXPECT_EQ(table->full_width(), 9);
  const Rows rows = VisitedRows(*table, 1000);
  ASSERT_EQ(rows.size(), 20000u);
  for (const auto& [key, row] : rows) {
    const float k = key;
    EXPECT_EQ(row, (std::vector<float>{k, k, k, 0.25f, 0.25f, 0.25f, 0.5f, 0.5f,
                                       0.5f}));
  }
}

TEST(Slots, OfTheSameOwnerAndNamesAreKept) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->SetSlots(Adam()).ok());
  const float row[] = {1, 2, 3};
  ASSERT_TRUE(table->Import({7}, 3, row, nullptr).ok());
  ASSERT_TRUE(table->SetSlots(Adam()).ok());
  EXPECT_EQ(VisitedRows(*table, 1), (Rows{{7, {1, 2, 3}}}));
}

TEST(Slots, OfAnotherOwnerAreRefused) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->SetSlots(Adam()).ok());
  const absl::Status status = table->SetSlots({"sgd", {}, {}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'adam'"));
  EXPECT_EQ(table->slots().owner, "adam");
}

TEST(Slots, AreDroppedAndThoseOfAnotherOwnerBeginAnew) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->SetSlots(Adam()).ok());
  const float row[] = {1, 2, 3};
  ASSERT_TRUE(table->Import({7}, 3, row, nullptr).ok());
  ASSERT_TRUE(table->DropSlots().ok());
  EXPECT_EQ(table->slots().owner, "");
  EXPECT_EQ(VisitedRows(*table, 1), (Rows{{7, {1}}}));
  ASSERT_TRUE(table->SetSlots({"adagrad", {"a"}, {4}}).ok());
  FillTable(table.get(), 1);
  EXPECT_EQ(VisitedRows(*table, 1), (Rows{{7, {1, 4}}, {0, {0, 4}}}));
}

TEST(Slots, NeedOneInitialValueEachAndAreAtMostFour) {
  auto table = MakeTestTable(1);
  EXPECT_EQ(table->SetSlots({"adam", {"m", "v"}, {0}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      table->SetSlots({"x", {"1", "2", "3", "4", "5"}, {0, 0, 0, 0, 0}}).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table->full_width(), 1);
}

TEST(Slots, SurviveClear) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->SetSlots(Adam()).ok());
  FillTable(table.get(), 10);
  table->Clear();
  FillTable(table.get(), 1);
  EXPECT_EQ(VisitedRows(*table, 9), (Rows{{0, {0, 0.25f, 0.5f}}}));
}

TEST(Visit, SeesEveryKeyOnceInFullChunks) {
  auto table = MakeTestTable(2);
  FillTable(table.get(), 10000);
  std::vector<size_t> sizes;
  ASSERT_TRUE(table->Freeze()
                  ->Visit(
                      3000,
                      [&](absl::Span<const int64_t> keys, const float* rows) {
                        sizes.push_back(keys.size());
                        return absl::OkStatus();
                      },
                      nullptr)
                  .ok());
  EXPECT_EQ(sizes, (std::vector<size_t>{3000, 3000, 3000, 1000}));
  EXPECT_EQ(VisitedRows(*table, 777).size(), 10000u);
}

TEST(Visit, PassesTheVisitorsErrorOnAndStops) {
  auto table = MakeTestTable(1);
  FillTable(table.get(), 1000);
  int calls = 0;
  const absl::Status status = table->Freeze()->Visit(
      10,
      [&calls](absl::Span<const int64_t> keys, const float* rows) {
        ++calls;
        return absl::DataLossError("disk is full");
      },
      nullptr);
  EXPECT_EQ(status, absl::DataLossError("disk is full"));
  EXPECT_EQ(calls, 1);
}

TEST(Visit, RefusesChunksOfNoRows) {
  auto table = MakeTestTable(1);
  EXPECT_EQ(table->Freeze()
                ->Visit(
                    0,
                    [](absl::Span<const int64_t>, const float*) {
                      return absl::OkStatus();
                    },
                    nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(VisitBlocks, GivesWhatImportTakes) {
  ThreadExecutor executor(2);
  auto table = MakeTestTable(3);
  ASSERT_TRUE(table->SetSlots(Adam()).ok());
  FillTable(table.get(), 5000);
  const ExportedRows all = ExportRows(*table, &executor);
  auto copy = MakeTestTable(3);
  ASSERT_TRUE(copy->SetSlots(Adam()).ok());
  ASSERT_TRUE(copy->Import(all.keys, 9, all.full_rows.data(), &executor).ok());
  EXPECT_EQ(VisitedRows(*copy, 100), VisitedRows(*table, 5000));
}

TEST(Import, RefusesRowsOfAnotherWidth) {
  auto table = MakeTestTable(3);
  ASSERT_TRUE(table->SetSlots(Adam()).ok());
  const float row[] = {1, 2, 3};
  EXPECT_EQ(table->Import({7}, 3, row, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(table->size(), 0);
}

TEST(Freeze, GivesTheLayoutOfItsMoment) {
  auto table = MakeTestTable(2);
  FillTable(table.get(), 3000);
  std::thread attaching([&] { ASSERT_TRUE(table->SetSlots(Adam()).ok()); });
  for (int i = 0; i < 50; ++i) {
    const ExportedRows all = ExportRows(*table);
    ASSERT_EQ(all.keys.size(), 3000);
    const int64_t slots = all.layout.num_slots;
    ASSERT_TRUE(slots == 0 || slots == 2);
    for (size_t k = 0; k < all.keys.size(); ++k) {
      const float* row = all.full_rows.data() + k * all.layout.width();
      ASSERT_EQ(row[0], static_cast<float>(all.keys[k]));
      if (slots == 2) {
        ASSERT_EQ(row[4], 0.5f);
      }
    }
  }
  attaching.join();
}

TEST(Import, WritesOverPresentRowsAndSlots) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->SetSlots(Adam()).ok());
  FillTable(table.get(), 3);
  const float rows[] = {10, 11, 12, 20, 21, 22};
  ASSERT_TRUE(table->Import({1, 1}, 3, rows, nullptr).ok());
  EXPECT_EQ(
      VisitedRows(*table, 9),
      (Rows{{0, {0, 0.25f, 0.5f}}, {1, {20, 21, 22}}, {2, {2, 0.25f, 0.5f}}}));
}

}  // namespace
}  // namespace tfembed
