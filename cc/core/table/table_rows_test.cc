// Read and Write: the table as a source and a sink of grouped lookups; the
// rows that update rules move.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "cc/core/rows/rows.h"
#include "cc/core/testing/test_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

TEST(TableSource, LocatesPresentRowsAndGivesNullForMissingOnes) {
  auto table = MakeTestTable(4, /*initial_value=*/2);
  std::vector<int64_t> keys(200);
  std::vector<float> numbers(200);
  for (int i = 0; i < 200; ++i) numbers[i] = keys[i] = i;
  ASSERT_TRUE(table->Upsert(keys, RowsOf(numbers, 4).data(), nullptr).ok());
  std::vector<int64_t> ids(300);
  for (int i = 0; i < 300; ++i) ids[i] = i;
  std::vector<const float*> rows(300);
  const auto source = table->Read();
  EXPECT_EQ(source->Locate(ids.data(), 300, rows.data()).value(), 100);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(std::vector<float>(rows[i], rows[i] + 4),
              std::vector<float>(4, i));
  }
  for (int i = 200; i < 300; ++i) EXPECT_EQ(rows[i], nullptr);
  float missing[4];
  source->FillMissing(250, missing);
  EXPECT_EQ(missing[3], 2);
  EXPECT_EQ(source->dim(), 4);
}

TEST(TrainedRows, AreValueAndSlotsOrTheInitialOnes) {
  auto table = MakeTestTable(2, /*initial_value=*/2);
  ASSERT_TRUE(table->SetSlots({"adam", {"m", "v"}, {5, 6}}).ok());
  const std::vector<float> full_row = {1, 2, 3, 4, 7, 8};
  ASSERT_TRUE(
      table->WriteTrained({9}, 6, full_row.data(), false, nullptr).ok());
  std::vector<float> rows(12);
  ASSERT_TRUE(table->LookupTrained({9, 4}, 6, rows.data(), nullptr).ok());
  EXPECT_EQ(rows, (std::vector<float>{1, 2, 3, 4, 7, 8, 2, 2, 5, 5, 6, 6}));
  EXPECT_EQ(table->size(), 1);
  EXPECT_EQ(table->LookupTrained({9}, 2, rows.data(), nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(TrainedRows, TakeSumsAndMissingOnesStartFromTheInitialOnes) {
  auto table = MakeTestTable(1, /*initial_value=*/2);
  ASSERT_TRUE(table->SetSlots({"adagrad", {"a"}, {5}}).ok());
  const std::vector<float> deltas = {1, 10, 1, 10, 3, 30};
  ASSERT_TRUE(
      table->WriteTrained({7, 7, 8}, 2, deltas.data(), true, nullptr).ok());
  std::vector<float> rows(4);
  ASSERT_TRUE(table->LookupTrained({7, 8}, 2, rows.data(), nullptr).ok());
  EXPECT_EQ(rows, (std::vector<float>{4, 25, 5, 35}));
  EXPECT_EQ(table->WriteTrained({7}, 3, deltas.data(), true, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(TrainedRows, OfNewKeysStartFromTheSlotsThatWereSetLast) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->SetSlots({"adagrad", {"a"}, {5}}).ok());
  ASSERT_TRUE(table->Upsert({1}, RowsOf({1}, 1).data(), nullptr).ok());
  ASSERT_TRUE(table->SetSlots({"adagrad", {"a"}, {6}}).ok());
  std::vector<float> rows(4);
  ASSERT_TRUE(table->LookupTrained({1, 2}, 2, rows.data(), nullptr).ok());
  EXPECT_EQ(rows, (std::vector<float>{1, 5, 0, 6}));
  EXPECT_EQ(table->slots().initial_values, std::vector<float>{6});
}

// Inserts ids through the sink, part by part.
void InsertAll(EmbeddingTable* table, const std::vector<int64_t>& ids,
               std::vector<MutableRow>* rows) {
  const auto sink = table->Write();
  ASSERT_TRUE(sink->hold()->Pin(ids).ok());
  rows->resize(ids.size());
  for (int part = 0; part < sink->num_parts(); ++part) {
    std::vector<int64_t> part_ids;
    std::vector<size_t> places;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (sink->PartOf(sink->Rank(ids[i])) != part) continue;
      part_ids.push_back(ids[i]);
      places.push_back(i);
    }
    std::vector<MutableRow> part_rows(part_ids.size());
    ASSERT_TRUE(sink->Reserve(part, nullptr, part_ids.size()).ok());
    sink->Lock(part);
    sink->FindOrInsert(part, part_ids.data(), part_ids.size(),
                       part_rows.data());
    sink->Unlock(part);
    for (size_t i = 0; i < places.size(); ++i) {
      (*rows)[places[i]] = part_rows[i];
    }
  }
}

TEST(TableSink, InsertsMissingIdsWithInitialRowAndSlots) {
  auto table = MakeTestTable(3, /*initial_value=*/2);
  ASSERT_TRUE(table->SetSlots({"adam", {"m", "v"}, {5, 6}}).ok());
  ASSERT_TRUE(table->Upsert({1}, RowsOf({9}, 3).data(), nullptr).ok());
  std::vector<int64_t> ids(3000);
  for (int i = 0; i < 3000; ++i) ids[i] = i;
  std::vector<MutableRow> rows;
  InsertAll(table.get(), ids, &rows);
  EXPECT_EQ(table->size(), 3000);
  for (int i = 0; i < 3000; ++i) {
    EXPECT_EQ(std::vector<float>(rows[i].value, rows[i].value + 3),
              std::vector<float>(3, i == 1 ? 9 : 2));
    EXPECT_EQ(rows[i].slots[0][2], 5);
    EXPECT_EQ(rows[i].slots[1][2], 6);
    EXPECT_EQ(rows[i].slots[2], nullptr);
  }
}

TEST(TableSink, IsRefusedATableWhoseSlotsWereDroppedSinceItWasMade) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->SetSlots({"adagrad", {"a"}, {5}}).ok());
  const auto sink = table->Write();
  ASSERT_TRUE(table->DropSlots().ok());
  EXPECT_EQ(sink->hold()->Pin({}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(table->Write()->hold()->Pin({}).ok());
}

TEST(TableSink, GivesTheRowsThatLookupsRead) {
  auto table = MakeTestTable(2);
  std::vector<MutableRow> rows;
  InsertAll(table.get(), {10, -20}, &rows);
  rows[1].value[0] = 7;
  EXPECT_EQ(LookUp(*table, {10, -20}), (std::vector<float>{0, 0, 7, 0}));
}

TEST(TableSink, RanksAreOneToOneAndPartsConsecutiveRangesOfThem) {
  auto table = MakeTestTable(1);
  const auto sink = table->Write();
  std::vector<uint64_t> ranks;
  for (int64_t id = -5000; id < 5000; ++id) ranks.push_back(sink->Rank(id));
  std::sort(ranks.begin(), ranks.end());
  EXPECT_EQ(std::set<uint64_t>(ranks.begin(), ranks.end()).size(), 10000u);
  std::vector<int> parts;
  for (uint64_t rank : ranks) parts.push_back(sink->PartOf(rank));
  EXPECT_TRUE(std::is_sorted(parts.begin(), parts.end()));
  EXPECT_EQ(parts.front(), 0);
  EXPECT_EQ(parts.back(), sink->num_parts() - 1);
  EXPECT_EQ(sink->rank_limit(), 0u);
}

TEST(TableSink, ReservingTheSameRoomAgainTakesNoMore) {
  auto table = MakeTestTable(1);
  int64_t bytes[2];
  for (int64_t& after : bytes) {
    const auto sink = table->Write();
    ASSERT_TRUE(sink->hold()->Pin({}).ok());
    ASSERT_TRUE(sink->Reserve(0, nullptr, 1000).ok());
    after = table->stats().index_bytes + table->stats().row_bytes;
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

}  // namespace
}  // namespace tfembed
