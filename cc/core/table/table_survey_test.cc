// Samples of a table's rows, and the rows of the highest worth.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 2;

std::unique_ptr<EmbeddingTable> TableWith(EmbeddingTable::Options options) {
  options.dim = kDim;
  auto initial_rows = InitialRows::Create("uniform", {-1, 1}, 7, kDim);
  auto table = EmbeddingTable::Create(options, *std::move(initial_rows));
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

// Keys 0 to n - 1, key k with the row {k, 0}.
void Fill(EmbeddingTable* table, int64_t n) {
  std::vector<int64_t> keys(n);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<float> rows(n * kDim, 0);
  for (int64_t k = 0; k < n; ++k) rows[k * kDim] = static_cast<float>(k);
  ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
}

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

TEST(TableSurveyTest, AllRowsAreLookedAtWhereThatManyAreAskedFor) {
  auto table = TableWith({});
  Fill(table.get(), 1000);
  ThreadExecutor executor(3);
  auto survey = table->SurveyRows(kAll, &executor);
  ASSERT_EQ(survey.keys.size(), 1000);
  EXPECT_EQ(survey.size, 1000);
  EXPECT_TRUE(survey.worth.empty());
  for (size_t i = 0; i < survey.keys.size(); ++i) {
    EXPECT_EQ(survey.norms[i], static_cast<double>(survey.keys[i]));
  }
  EXPECT_EQ(survey.use.probes, table->use().probes);
  EXPECT_EQ(survey.use.longest_probe, table->use().longest_probe);
  std::sort(survey.keys.begin(), survey.keys.end());
  for (int64_t k = 0; k < 1000; ++k) EXPECT_EQ(survey.keys[k], k);
}

TEST(TableSurveyTest, ASampleIsAsTheWhole) {
  auto table = TableWith({});
  constexpr int64_t kKeys = 200000;
  Fill(table.get(), kKeys);
  const auto survey = table->SurveyRows(10000, nullptr);
  const auto n = static_cast<int64_t>(survey.keys.size());
  EXPECT_GE(n, 10000);
  EXPECT_LT(n, 20000);
  EXPECT_EQ(survey.size, kKeys);
  const double mean =
      std::accumulate(survey.norms.begin(), survey.norms.end(), 0.0) / n;
  // Four standard deviations of the mean of n uniform numbers.
  const double deviation = kKeys / std::sqrt(12.0 * n);
  EXPECT_NEAR(mean, kKeys / 2.0, 4 * deviation);
}

TEST(TableSurveyTest, NoRowsAreLookedAtInAnEmptyTable) {
  auto table = TableWith({});
  const auto survey = table->SurveyRows(kAll, nullptr);
  EXPECT_TRUE(survey.keys.empty());
  EXPECT_EQ(survey.size, 0);
  EXPECT_EQ(survey.use.probes, 0);
  Fill(table.get(), 10);
  EXPECT_TRUE(table->SurveyRows(0, nullptr).keys.empty());
}

TEST(TableSurveyTest, ARowWithoutSlotsIsTrainedWhereItIsNotItsInitialRow) {
  auto table = TableWith({});
  const std::vector<int64_t> keys = {1, 2};
  std::vector<float> rows(2 * kDim);
  table->Lookup(keys, rows.data(), nullptr, nullptr);
  rows[kDim] += 1;
  ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
  const auto survey = table->SurveyRows(kAll, nullptr);
  ASSERT_EQ(survey.keys.size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(survey.trained[i] != 0, survey.keys[i] == 2);
  }
}

TEST(TableSurveyTest, ARowWithSlotsIsTrainedWhereTheseMoved) {
  auto table = TableWith({});
  ASSERT_TRUE(table->SetSlots({"adagrad", {"accumulators"}, {0.1f}}).ok());
  Fill(table.get(), 3);
  const std::vector<int64_t> keys = {1};
  std::vector<float> row(table->trained_width());
  ASSERT_TRUE(table->LookupTrained(keys, row.size(), row.data(), nullptr).ok());
  row.back() += 1;
  ASSERT_TRUE(
      table->WriteTrained(keys, row.size(), row.data(), false, nullptr).ok());
  const auto survey = table->SurveyRows(kAll, nullptr);
  ASSERT_EQ(survey.keys.size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(survey.trained[i] != 0, survey.keys[i] == 1);
  }
}

TEST(TableSurveyTest, RowsWithANanHaveTheNormMinusOne) {
  auto table = TableWith({});
  const std::vector<int64_t> keys = {5};
  const float row[] = {1, std::numeric_limits<float>::quiet_NaN()};
  ASSERT_TRUE(table->Upsert(keys, row, nullptr).ok());
  EXPECT_EQ(table->SurveyRows(kAll, nullptr).norms, std::vector<double>{-1});
}

TEST(TableTopTest, TheRowsOfTheHighestWorthComeFirst) {
  auto table = TableWith({});
  Fill(table.get(), 5000);
  ThreadExecutor executor(3);
  const auto top = table->FindTop("smallest_norm", 3, &executor);
  ASSERT_TRUE(top.ok()) << top.status();
  ASSERT_EQ(top->size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ((*top)[i].key, 4999 - i);
    EXPECT_EQ((*top)[i].worth, 4999.0 - i);
  }
}

TEST(TableTopTest, AmongEqualRowsTheSmallestKeysAreOnTop) {
  EmbeddingTable::Options options;
  options.eviction = "least_frequent";
  auto table = TableWith(options);
  Fill(table.get(), 500);
  const auto top = table->FindTop("", 4, nullptr);
  ASSERT_TRUE(top.ok()) << top.status();
  ASSERT_EQ(top->size(), 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ((*top)[i].key, i);
}

TEST(TableTopTest, NoMoreRowsComeThanThereAre) {
  auto table = TableWith({});
  Fill(table.get(), 2);
  EXPECT_EQ(table->FindTop("smallest_norm", 100, nullptr)->size(), 2);
  EXPECT_TRUE(table->FindTop("smallest_norm", 0, nullptr)->empty());
}

TEST(TableTopTest, APolicyWithoutNotesInTheRowsIsRefused) {
  auto table = TableWith({});
  EXPECT_FALSE(table->FindTop("", 1, nullptr).ok());
  EXPECT_FALSE(table->FindTop("least_frequent", 1, nullptr).ok());
}

}  // namespace
}  // namespace tfembed
