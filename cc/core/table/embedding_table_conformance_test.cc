// The behaviour of every table, whatever keeps its rows.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kDim = 3;
constexpr float kInitial = -1;

using Model = std::map<int64_t, float>;  // All columns of a row are alike.

class EmbeddingTableConformance : public ::testing::Test {
 protected:
  std::unique_ptr<EmbeddingTable> Make(ValueType type = ValueType()) {
    EmbeddingTable::Options options;
    options.dim = kDim;
    options.type = type;
    auto rows =
        InitialRows::Create("constant", {kInitial}, /*seed=*/1, kDim, type);
    return *EmbeddingTable::Create(options, *std::move(rows));
  }

  // The value of each key, which a visit must show once, and its slots.
  Model VisitAll(const EmbeddingTable& table, std::vector<float> slots = {}) {
    Model found;
    const auto check = [&](absl::Span<const int64_t> keys, const float* row) {
      EXPECT_LE(keys.size(), 2);
      for (int64_t key : keys) {
        EXPECT_TRUE(found.emplace(key, row[0]).second) << key;
        for (size_t s = 0; s < slots.size(); ++s) {
          EXPECT_EQ(row[kDim * (1 + s)], slots[s]);
        }
        row += table.full_width();
      }
      return absl::OkStatus();
    };
    EXPECT_TRUE(table.Freeze()->Visit(2, check, &executor_).ok());
    return found;
  }

  absl::Status Upsert(EmbeddingTable* table, absl::Span<const int64_t> keys,
                      absl::Span<const float> numbers) {
    return table->Upsert(keys, RowsOf(numbers, kDim).data(), &executor_);
  }

  ThreadExecutor executor_{2};
};

TEST_F(EmbeddingTableConformance,
       AMissingKeyReadsItsInitialRowAndIsNotInserted) {
  auto table = Make();
  EXPECT_EQ(LookUp(*table, {1, -5}, &executor_),
            RowsOf({kInitial, kInitial}, kDim));
  EXPECT_THAT(Exists(*table, {1, -5}, &executor_), ElementsAre(0, 0));
  EXPECT_EQ(table->size(), 0);
}

TEST_F(EmbeddingTableConformance, EveryKeyValueIsAllowed) {
  auto table = Make();
  const std::vector<int64_t> keys = {std::numeric_limits<int64_t>::min(),
                                     std::numeric_limits<int64_t>::max(), 0, -1,
                                     -2};
  ASSERT_TRUE(Upsert(table.get(), keys, {1, 2, 3, 4, 5}).ok());
  EXPECT_EQ(LookUp(*table, keys), RowsOf({1, 2, 3, 4, 5}, kDim));
  EXPECT_EQ(table->size(), 5);
}

TEST_F(EmbeddingTableConformance, EmptyBatchesChangeNothing) {
  auto table = Make();
  table->Lookup({}, nullptr, nullptr, nullptr);
  EXPECT_TRUE(table->Upsert({}, nullptr, nullptr).ok());
  EXPECT_TRUE(table->Accum({}, nullptr, nullptr, nullptr, nullptr).ok());
  EXPECT_TRUE(table->Import({}, kDim, nullptr, nullptr).ok());
  table->Remove({}, nullptr);
  EXPECT_EQ(table->size(), 0);
}

TEST_F(EmbeddingTableConformance, OfARepeatedKeyTheLastRowStays) {
  auto table = Make();
  ASSERT_TRUE(Upsert(table.get(), {7, 8, 7, 7}, {1, 2, 3, 4}).ok());
  EXPECT_EQ(LookUp(*table, {7, 8}), RowsOf({4, 2}, kDim));
  EXPECT_EQ(table->size(), 2);
}

TEST_F(EmbeddingTableConformance, AccumObeysWhatItsCallerSaw) {
  auto table = Make();
  ASSERT_TRUE(Upsert(table.get(), {1, 2}, {10, 20}).ok());
  const bool exists[] = {true, false, true, false, true};
  ASSERT_TRUE(table
                  ->Accum({1, 2, 3, 4, 1}, RowsOf({1, 1, 1, 1, 2}, kDim).data(),
                          nullptr, exists, &executor_)
                  .ok());
  EXPECT_THAT(VisitAll(*table), (Model{{1, 13}, {2, 20}, {4, 1}}));
}

TEST_F(EmbeddingTableConformance, RemovedKeysAreGoneAndCanComeBack) {
  auto table = Make();
  ASSERT_TRUE(Upsert(table.get(), {1, 2, 3}, {1, 2, 3}).ok());
  table->Remove({2, 2, 9}, &executor_);
  EXPECT_THAT(VisitAll(*table), (Model{{1, 1}, {3, 3}}));
  ASSERT_TRUE(Upsert(table.get(), {2}, {5}).ok());
  EXPECT_THAT(VisitAll(*table), (Model{{1, 1}, {2, 5}, {3, 3}}));
}

TEST_F(EmbeddingTableConformance, AClearedTableIsEmptyAndUsable) {
  auto table = Make();
  ASSERT_TRUE(Upsert(table.get(), {1, 2}, {1, 2}).ok());
  table->Clear();
  EXPECT_EQ(table->size(), 0);
  ASSERT_TRUE(Upsert(table.get(), {3}, {3}).ok());
  EXPECT_THAT(VisitAll(*table), (Model{{3, 3}}));
}

TEST_F(EmbeddingTableConformance, SlotsComeToOldRowsAndNewOnes) {
  auto table = Make();
  ASSERT_TRUE(Upsert(table.get(), {1}, {1}).ok());
  const SlotLayout adam = {"adam", {"m", "v"}, {0.5f, 0.25f}};
  ASSERT_TRUE(table->SetSlots(adam).ok());
  ASSERT_TRUE(table->SetSlots(adam).ok());
  ASSERT_TRUE(Upsert(table.get(), {2}, {2}).ok());
  EXPECT_THAT(VisitAll(*table, {0.5f, 0.25f}), (Model{{1, 1}, {2, 2}}));
  EXPECT_EQ(table->SetSlots({"adagrad", {"a"}, {0}}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(table->slots().names, ElementsAre("m", "v"));
}

TEST_F(EmbeddingTableConformance, AVisitorsErrorEndsTheVisit) {
  auto table = Make();
  ASSERT_TRUE(Upsert(table.get(), {1, 2, 3}, {1, 2, 3}).ok());
  int calls = 0;
  const absl::Status status = table->Freeze()->Visit(
      1,
      [&](absl::Span<const int64_t>, const float*) {
        ++calls;
        return absl::AbortedError("enough");
      },
      &executor_);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 1);
}

TEST_F(EmbeddingTableConformance, WhatIsExportedCanBeImported) {
  auto table = Make(), other = Make();
  const SlotLayout adagrad = {"adagrad", {"a"}, {0.1f}};
  ASSERT_TRUE(table->SetSlots(adagrad).ok() && other->SetSlots(adagrad).ok());
  ASSERT_TRUE(Upsert(table.get(), {4, -9}, {1, 2}).ok());
  ExportedRows all = ExportRows(*table, &executor_);
  for (size_t i = 0; i < all.keys.size(); ++i) {
    std::fill_n(all.full_rows.data() + (2 * i + 1) * kDim, kDim, 7.0f);
  }
  ASSERT_TRUE(
      other->Import(all.keys, 2 * kDim, all.full_rows.data(), &executor_).ok());
  EXPECT_THAT(VisitAll(*other, {7}), (Model{{-9, 2}, {4, 1}}));
}

TEST_F(EmbeddingTableConformance, ASnapshotShowsTheMomentItWasTaken) {
  auto table = Make();
  ASSERT_TRUE(Upsert(table.get(), {1, 2, 3}, {1, 2, 3}).ok());
  const auto snapshot = table->Freeze();
  EXPECT_EQ(snapshot->size(), 3);
  EXPECT_EQ(LookUp(*table, {2}), RowsOf({2}, kDim));  // Readers do not wait.
  Model found;
  ASSERT_TRUE(snapshot
                  ->Visit(
                      2,
                      [&](absl::Span<const int64_t> keys, const float* row) {
                        for (size_t i = 0; i < keys.size(); ++i) {
                          found[keys[i]] = row[i * kDim];
                        }
                        return absl::OkStatus();
                      },
                      &executor_)
                  .ok());
  EXPECT_THAT(found, (Model{{1, 1}, {2, 2}, {3, 3}}));
}

TEST_F(EmbeddingTableConformance, KeysAreToldWithoutTheirRows) {
  auto table = Make();
  ASSERT_TRUE(Upsert(table.get(), {1, 2}, {1, 2}).ok());
  std::vector<int64_t> keys;
  ASSERT_TRUE(table
                  ->ExportKeys(
                      [&](int64_t n) -> absl::StatusOr<int64_t*> {
                        keys.resize(n);
                        return keys.data();
                      },
                      &executor_)
                  .ok());
  EXPECT_THAT(keys, ::testing::UnorderedElementsAre(1, 2));
  bool exists[2];
  table->Contains({2, 3}, exists, &executor_);
  EXPECT_THAT(exists, ElementsAre(true, false));
}

TEST_F(EmbeddingTableConformance, ASourceLocatesRowsThatAreThere) {
  auto table = Make();
  ASSERT_TRUE(Upsert(table.get(), {1, 2}, {1, 2}).ok());
  const auto source = table->Read();
  const int64_t ids[] = {2, 3};
  const float* rows[2];
  EXPECT_EQ(source->Locate(ids, 2, rows).value(), 1);
  EXPECT_EQ(rows[0][kDim - 1], 2);
  EXPECT_EQ(rows[1], nullptr);
  float missing[kDim];
  source->FillMissing(3, missing);
  EXPECT_THAT(missing, ElementsAre(kInitial, kInitial, kInitial));
}

TEST_F(EmbeddingTableConformance, NumbersOfEveryTypeAreKept) {
  for (ElementKind kind :
       {ElementKind::kFloat16, ElementKind::kBfloat16, ElementKind::kFloat64,
        ElementKind::kInt8, ElementKind::kInt32, ElementKind::kInt64}) {
    const ValueType type = kind;
    auto table = Make(type);
    const double numbers[] = {1, -2, 3, 4, 5, -6};
    std::vector<char> rows(6 * type.size()), found(9 * type.size());
    type.FromDoubles(numbers, rows.data(), 6);
    ASSERT_TRUE(table->Upsert({8, 9}, rows.data(), &executor_).ok());
    table->Lookup({8, 9, 10}, found.data(), nullptr, &executor_);
    std::vector<char> expected = rows;
    const double initial[] = {kInitial, kInitial, kInitial};
    expected.resize(found.size());
    type.FromDoubles(initial, expected.data() + rows.size(), kDim);
    EXPECT_EQ(found, expected) << type.name();
  }
}

TEST_F(EmbeddingTableConformance, RandomOperationsAgreeWithAMap) {
  auto table = Make();
  Model model;
  std::mt19937 random(1);
  for (int step = 0; step < 2000; ++step) {
    std::vector<int64_t> keys(random() % 50);
    std::vector<float> numbers;
    for (int64_t& key : keys) {
      key = static_cast<int64_t>(random() % 500) - 250;
      numbers.push_back(static_cast<float>(random() % 1000));
    }
    if (random() % 3 == 0) {
      table->Remove(keys, &executor_);
      for (int64_t key : keys) model.erase(key);
    } else {
      ASSERT_TRUE(Upsert(table.get(), keys, numbers).ok());
      for (size_t i = 0; i < keys.size(); ++i) model[keys[i]] = numbers[i];
    }
    ASSERT_EQ(table->size(), static_cast<int64_t>(model.size()));
  }
  EXPECT_EQ(VisitAll(*table), model);
}

TEST(EmbeddingTableCreate, RefusesInitialRowsOfAnotherWidth) {
  auto rows = InitialRows::Create("constant", {0}, 1, 1);
  const auto table = EmbeddingTable::Create({}, *std::move(rows));
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tfembed
