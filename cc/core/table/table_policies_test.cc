// Tables with policies: admission, what rows are worth, counts of use.
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 2;

std::unique_ptr<EmbeddingTable> TableWith(EmbeddingTable::Options options) {
  options.dim = kDim;
  auto initial_rows = InitialRows::Create("constant", {0.5}, 1, kDim);
  auto table = EmbeddingTable::Create(options, *std::move(initial_rows));
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

std::unique_ptr<EmbeddingTable> Admitting(const std::string& policy) {
  EmbeddingTable::Options options;
  options.admission = policy;
  return TableWith(options);
}

std::unique_ptr<EmbeddingTable> Evicting(const std::string& policy) {
  EmbeddingTable::Options options;
  options.eviction = policy;
  return TableWith(options);
}

void Upsert(EmbeddingTable* table, const std::vector<int64_t>& keys,
            float number = 1) {
  const std::vector<float> rows(keys.size() * kDim, number);
  ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
}

// A training step that adds 1 to the rows of distinct ids; how many it got.
int Train(EmbeddingTable* table, const std::vector<int64_t>& ids) {
  auto sink = table->Write();
  EXPECT_TRUE(sink->hold()->Pin(ids).ok());
  int trained = 0;
  for (int64_t id : ids) {
    const int part = sink->PartOf(sink->Rank(id));
    EXPECT_TRUE(sink->Reserve(part, nullptr, 1).ok());
    sink->Lock(part);
    MutableRow row;
    sink->FindOrInsert(part, &id, 1, &row);
    if (row.value != nullptr) {
      for (int64_t c = 0; c < kDim; ++c) row.value[c] += 1;
      ++trained;
    }
    sink->Unlock(part);
  }
  return trained;
}

std::map<int64_t, double> Worth(const EmbeddingTable& table,
                                const std::string& policy = "") {
  std::vector<int64_t> keys;
  std::vector<double> worth;
  const auto allocate =
      [&](int64_t n) -> absl::StatusOr<EmbeddingTable::WorthBuffers> {
    keys.resize(n);
    worth.resize(n);
    return EmbeddingTable::WorthBuffers{keys.data(), worth.data()};
  };
  ThreadExecutor executor(2);
  EXPECT_TRUE(table.ExportWorth(policy, allocate, &executor).ok());
  std::map<int64_t, double> found;
  for (size_t i = 0; i < keys.size(); ++i) found[keys[i]] = worth[i];
  EXPECT_EQ(found.size(), keys.size());
  return found;
}

using Worths = std::map<int64_t, double>;

TEST(Admission, TrainingInsertsAKeyWhenItWasSeenOftenEnough) {
  auto table = Admitting("count seen=3");
  EXPECT_EQ(Train(table.get(), {1, 2}), 0);
  EXPECT_EQ(Train(table.get(), {1}), 0);
  EXPECT_EQ(table->size(), 0);
  EXPECT_EQ(Train(table.get(), {1, 2}), 1);
  EXPECT_EQ(LookUp(*table, {1, 2}), RowsOf({1.5, 0.5}, kDim));
  EXPECT_EQ(Train(table.get(), {1}), 1);
  EXPECT_EQ(table->size(), 1);
  EXPECT_EQ(table->use().admitted, 1);
  EXPECT_EQ(table->use().refused, 4);
}

TEST(Admission, AWriteInsertsAtOnce) {
  auto table = Admitting("count seen=3");
  Upsert(table.get(), {1}, 7);
  EXPECT_EQ(Train(table.get(), {1}), 1);
  EXPECT_EQ(LookUp(*table, {1}), RowsOf({8}, kDim));
}

TEST(Admission, AWriteEndsTheWaitOfAKey) {
  auto table = Admitting("count seen=3");
  EXPECT_EQ(Train(table.get(), {1}), 0);
  EXPECT_EQ(Train(table.get(), {1}), 0);
  Upsert(table.get(), {1}, 7);
  table->Remove({1}, nullptr);
  EXPECT_EQ(Train(table.get(), {1}), 0);
  EXPECT_EQ(Train(table.get(), {1}), 0);
  EXPECT_EQ(Train(table.get(), {1}), 1);
}

TEST(Admission, BeginsAnewAfterClear) {
  auto table = Admitting("bloom seen=2 capacity=1000");
  Train(table.get(), {1});
  table->Clear();
  EXPECT_EQ(Train(table.get(), {1}), 0);
  EXPECT_EQ(Train(table.get(), {1}), 1);
  EXPECT_GT(table->use().policy_bytes, 9000);
}

TEST(Admission, HoldsForManyKeys) {
  auto table = Admitting("count seen=2");
  std::vector<int64_t> ids(20000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = 3 * i;
  EXPECT_EQ(Train(table.get(), ids), 0);
  EXPECT_GT(table->use().policy_bytes, 0);
  EXPECT_EQ(Train(table.get(), ids), 20000);
  EXPECT_EQ(table->size(), 20000);
}

TEST(MissingValue, IsReadInPlaceOfInitialRowsOnly) {
  EmbeddingTable::Options options;
  options.missing_value = -3.0f;
  options.admission = "count seen=2";
  auto table = TableWith(options);
  EXPECT_EQ(LookUp(*table, {1}), RowsOf({-3}, kDim));
  Train(table.get(), {1});
  EXPECT_EQ(LookUp(*table, {1}), RowsOf({-3}, kDim));
  Train(table.get(), {1});
  EXPECT_EQ(LookUp(*table, {1}), RowsOf({1.5}, kDim));
}

TEST(LeastRecent, EachBatchOfWritesIsAStep) {
  auto table = Evicting("least_recent");
  Upsert(table.get(), {1, 2, 3});
  Train(table.get(), {2, 4});
  Upsert(table.get(), {5});
  EXPECT_EQ(Worth(*table),
            (Worths{{1, -2}, {2, -1}, {3, -2}, {4, -1}, {5, 0}}));
  Upsert(table.get(), {});
  bool exists[] = {true};
  const float ones[] = {1, 1};
  ASSERT_TRUE(table->Accum({1}, ones, nullptr, exists, nullptr).ok());
  EXPECT_EQ(Worth(*table)[1], 0);
  EXPECT_EQ(Worth(*table)[5], -2);
  EXPECT_EQ(table->use().meta_bytes, 5 * 4);
}

TEST(LeastRecent, SecondsDoNotGoBack) {
  auto table = Evicting("least_recent seconds=1");
  Upsert(table.get(), {1});
  EXPECT_LE(Worth(*table)[1], 0);
  EXPECT_GE(Worth(*table)[1], -60);
}

TEST(LeastFrequent, CountsBatchesOfWrites) {
  auto table = Evicting("least_frequent");
  Upsert(table.get(), {1, 2, 2});
  Train(table.get(), {2, 3});
  Train(table.get(), {3});
  EXPECT_EQ(Worth(*table), (Worths{{1, 1}, {2, 2}, {3, 2}}));
  LookUp(*table, {1});
  EXPECT_EQ(Worth(*table)[1], 1);
}

TEST(LeastFrequent, IsKeptWhenSlotsAreLaidOut) {
  auto table = Evicting("least_frequent");
  Upsert(table.get(), {1});
  Upsert(table.get(), {1});
  ASSERT_TRUE(table->SetSlots({"adam", {"m", "v"}, {0.25f, 0.5f}}).ok());
  Train(table.get(), {1, 2});
  EXPECT_EQ(Worth(*table), (Worths{{1, 3}, {2, 1}}));
  EXPECT_EQ(table->use().slot_bytes, 2 * 2 * kDim * 4);
}

TEST(LeastFrequent, ARemovedKeyBeginsAnew) {
  auto table = Evicting("least_frequent");
  Upsert(table.get(), {1, 1, 1});
  table->Remove({1}, nullptr);
  Train(table.get(), {1});
  EXPECT_EQ(Worth(*table), (Worths{{1, 1}}));
}

TEST(SmallestNorm, JudgesAnyTable) {
  auto table = MakeTestTable(kDim);
  Upsert(table.get(), {1}, 3);
  Upsert(table.get(), {2}, 4);
  const Worths worth = Worth(*table, "smallest_norm");
  EXPECT_FLOAT_EQ(worth.at(1), std::sqrt(18));
  EXPECT_FLOAT_EQ(worth.at(2), std::sqrt(32));
}

TEST(ExportWorth, RefusesAPolicyWithoutItsNotes) {
  const auto allocate =
      [](int64_t n) -> absl::StatusOr<EmbeddingTable::WorthBuffers> {
    return absl::InternalError("not called");
  };
  for (const char* policy : {"", "least_recent", "oldest"}) {
    const absl::Status status =
        MakeTestTable(kDim)->ExportWorth(policy, allocate, nullptr);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}

TEST(Use, CountsLookupsAndEvictions) {
  auto table = MakeTestTable(kDim);
  Upsert(table.get(), {1, 2, 3});
  LookUp(*table, {1, 1, 9});
  const float* rows[2];
  const int64_t ids[] = {3, 8};
  EXPECT_EQ(table->Read()->Locate(ids, 2, rows).value(), 1);
  table->Evict({1, 1, 9}, nullptr);
  table->Remove({2}, nullptr);
  const TableUse use = table->use();
  EXPECT_EQ(use.hits, 3);
  EXPECT_EQ(use.misses, 2);
  EXPECT_EQ(use.evicted, 1);
  EXPECT_EQ(use.value_bytes, kDim * 4);
  EXPECT_EQ(use.probes, 1);
  EXPECT_EQ(use.longest_probe, 1);
}

TEST(Use, CountsRowsWithANaN) {
  auto table = MakeTestTable(kDim);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const float rows[] = {1, nan, 2, infinity, nan, nan, 3, 4};
  ASSERT_TRUE(table->Upsert({1, 2, 3, 4}, rows, nullptr).ok());
  EXPECT_EQ(table->use().nan_rows, 2);
  EXPECT_EQ(table->size(), 4);
}

TEST(Use, CountsProbes) {
  auto table = MakeTestTable(kDim);
  std::vector<int64_t> keys(100000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  Upsert(table.get(), keys);
  const TableUse use = table->use();
  EXPECT_GE(use.probes, 100000);
  EXPECT_LT(use.probes, 130000);  // Most keys lie in their first bucket.
  EXPECT_GE(use.longest_probe, 2);
}

TEST(Create, RefusesPoliciesThatItCannotRead) {
  for (const bool admission : {false, true}) {
    EmbeddingTable::Options options;
    options.dim = kDim;
    (admission ? options.admission : options.eviction) = "magic";
    auto initial_rows = InitialRows::Create("constant", {0}, 1, kDim);
    auto table = EmbeddingTable::Create(options, *std::move(initial_rows));
    EXPECT_TRUE(absl::IsInvalidArgument(table.status()));
  }
}

}  // namespace
}  // namespace tfembed
