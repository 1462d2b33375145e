// Tables of which more is asked than the machine has memory for, though it
// would promise that.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/support/memory_promise.h"
#include "cc/core/testing/bounded_table.h"
#include "cc/core/testing/gradient_features.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 64;
constexpr int64_t kRowBytes = kDim * 4;
constexpr int64_t kMiB = int64_t{1} << 20;

// A machine that has so much memory for tables.
class Left : public ScopedAvailableMemory {
 public:
  explicit Left(int64_t bytes)
      : ScopedAvailableMemory([bytes] { return bytes + 64 * kMiB; }) {}
};

std::vector<float> Filled(int64_t n, float number, int64_t dim = kDim) {
  return std::vector<float>(n * dim, number);
}

absl::Status Write(EmbeddingTable* table, const std::vector<int64_t>& keys,
                   float number) {
  const std::vector<float> rows = Filled(keys.size(), number, table->dim());
  return table->Upsert(keys, rows.data(), nullptr);
}

std::unique_ptr<EmbeddingTable> FilledTable(int64_t keys, int64_t dim = kDim) {
  auto table = MakeTestTable(dim);
  EXPECT_TRUE(Write(table.get(), From(0, keys), 1).ok());
  return table;
}

void ExpectExhausted(const absl::Status& status) {
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find("are available"), std::string::npos)
      << status;
}

TEST(AvailableMemory, WritesBeyondItLeaveTheTableAsItWas) {
  auto table = FilledTable(1000);
  const Left left(kMiB);
  ExpectExhausted(Write(table.get(), From(0, 100000), 2));
  EXPECT_EQ(table->size(), 1000);
  EXPECT_EQ(LookUp(*table, From(0, 1000)), Filled(1000, 1));
  EXPECT_TRUE(Write(table.get(), From(0, 3000), 2).ok());
  EXPECT_EQ(LookUp(*table, From(0, 3000)), Filled(3000, 2));
}

TEST(AvailableMemory, OfOtherProgramsRefusesNoSmallWrite) {
  auto table = FilledTable(1000);
  const ScopedAvailableMemory left([] { return 45 * kMiB; });
  for (int64_t i = 0; i < 100; ++i) {
    const absl::Status status =
        Write(table.get(), From(2000 + i * 100, 100), 2);
    ASSERT_TRUE(status.ok()) << status;
  }
  ExpectExhausted(Write(table.get(), From(20000, 10000), 3));
  EXPECT_EQ(table->size(), 11000);
}

TEST(AvailableMemory, IsAskedForNewKeysAlone) {
  auto table = FilledTable(20000);
  const Left left(kMiB);
  // 5 MB if all were new.
  EXPECT_TRUE(Write(table.get(), From(100, 20000), 2).ok());
  EXPECT_EQ(table->size(), 20100);
  const std::vector<int64_t> one_key(50000, 1 << 20);
  EXPECT_TRUE(Write(table.get(), one_key, 3).ok());
  EXPECT_EQ(LookUp(*table, {1 << 20}), Filled(1, 3));
  const auto exists = std::make_unique<bool[]>(20000);
  std::fill_n(exists.get(), 20000, true);
  const auto rows = Filled(20000, 1);
  EXPECT_TRUE(
      table
          ->Accum(From(100, 20000), rows.data(), nullptr, exists.get(), nullptr)
          .ok());
  EXPECT_EQ(LookUp(*table, {150}), Filled(1, 3));
}

TEST(AvailableMemory, IsNotNeededForRowsOfRemovedKeys) {
  auto table = FilledTable(20000);
  table->Remove(From(0, 15000), nullptr);
  const Left left(kMiB);
  EXPECT_TRUE(Write(table.get(), From(100000, 12000), 2).ok());  // 3 MB.
  ExpectExhausted(Write(table.get(), From(200000, 12000), 2));
  EXPECT_EQ(table->size(), 17000);
}

TEST(AvailableMemory, IsNotNeededForRowsThatAClearedTableKept) {
  auto table = FilledTable(20000);
  const Left left(kMiB);
  ASSERT_TRUE(table->ClearFor(20000).ok());
  EXPECT_TRUE(Write(table.get(), From(100000, 15000), 2).ok());
  EXPECT_EQ(table->size(), 15000);
}

TEST(AvailableMemory, IsAskedForAnIndexThatGrows) {
  auto table = FilledTable(1000, /*dim=*/1);
  const Left left(2 * kMiB);
  const int64_t index_bytes = table->stats().index_bytes;
  for (int attempt = 0; attempt < 5; ++attempt) {
    ExpectExhausted(Write(table.get(), From(0, 200000), 2));  // 0.8 MB of rows.
  }
  EXPECT_EQ(table->stats().index_bytes, index_bytes);
  EXPECT_EQ(table->size(), 1000);
  EXPECT_EQ(LookUp(*table, From(0, 1000)), Filled(1000, 1, 1));
  for (int64_t i = 1; i < 100; ++i) {
    const absl::Status status = Write(table.get(), From(i * 1000, 1000), 2);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(table->size(), 100000);
}

TEST(AvailableMemory, IsCountedForAnIndexWhereNewRowsAreFew) {
  // 51 MB if all keys were new, and what then is left suffices for no index.
  for (int64_t mebibytes : {12, 48, 49, 50}) {
    auto table = FilledTable(170000);
    const Left left(mebibytes * kMiB);
    const absl::Status status = Write(table.get(), From(0, 200000), 2);
    EXPECT_TRUE(status.ok()) << mebibytes << ": " << status;
  }
}

TEST(AvailableMemory, IsAskedForRowsOfKeysThatWereRemovedBeforeSlotsCame) {
  auto table = FilledTable(20000);
  table->Remove(From(0, 15000), nullptr);
  ASSERT_TRUE(table->SetSlots({"adagrad", {"accumulators"}, {0.1f}}).ok());
  const Left left(kMiB);
  EXPECT_TRUE(Write(table.get(), From(100000, 12000), 2).ok());
  ExpectExhausted(Write(table.get(), From(200000, 12000), 2));
  EXPECT_EQ(LookUp(*table, From(15000, 5000)), Filled(5000, 1));
}

TEST(AvailableMemory, IsAskedForSlots) {
  auto table = FilledTable(20000);
  {
    const Left left(kMiB);
    ExpectExhausted(table->SetSlots({"adagrad", {"accumulators"}, {0.1f}}));
    EXPECT_EQ(table->full_width(), kDim);
    EXPECT_EQ(LookUp(*table, From(0, 20000)), Filled(20000, 1));
  }
  const Left left(20 * kMiB);
  EXPECT_TRUE(table->SetSlots({"adagrad", {"accumulators"}, {0.1f}}).ok());
}

TEST(AvailableMemory, IsAskedForLongStrings) {
  EmbeddingTable::Options options;
  options.dim = 1;
  options.keys = KeyKind::kString;
  auto table = *EmbeddingTable::Create(
      options, *InitialRows::Create("constant", {0}, /*seed=*/1, 1));
  const Left left(kMiB);
  const std::string text(2 * kMiB, 'a');
  const auto add = [&](absl::string_view name) {
    int64_t key;
    return table->strings()->Add({&name, 1}, &key, nullptr);
  };
  ExpectExhausted(add(text));
  EXPECT_EQ(table->strings()->size(), 0);
  EXPECT_TRUE(add(text.substr(kMiB + kMiB / 2)).ok());
  // Once for many that are equal.
  const std::string name(1000, 'b');
  const std::vector<absl::string_view> names(5000, name);
  std::vector<int64_t> keys(names.size());
  EXPECT_TRUE(table->strings()->Add(names, keys.data(), nullptr).ok());
}

TEST(AvailableMemory, IsAskedForRoomAndCounters) {
  const Left left(kMiB);
  const auto create = [](int64_t capacity, const std::string& admission) {
    EmbeddingTable::Options options;
    options.dim = 1;
    options.initial_capacity = capacity;
    options.admission = admission;
    return EmbeddingTable::Create(
               options, *InitialRows::Create("constant", {0}, /*seed=*/1, 1))
        .status();
  };
  ExpectExhausted(create(200000, ""));
  EXPECT_TRUE(create(20000, "").ok());
  ExpectExhausted(create(0, "bloom seen=2 capacity=1000000 error_rate=0.01"));
  EXPECT_TRUE(create(0, "bloom seen=2 capacity=10000 error_rate=0.01").ok());
}

TEST(AvailableMemory, IsNotNeededForWhatABoundedTableReplaces) {
  auto table = Bounded(20000, "least_recent", "", {}, kDim);
  ASSERT_TRUE(Write(table.get(), From(0, 19000), 1).ok());
  const Left left(2 * kMiB);  // Stripes differ by chance, and by 1 MB grow.
  for (int64_t i = 1; i < 6; ++i) {
    const auto keys = From(i * 100000, 15000);
    const absl::Status status = Write(table.get(), keys, 2);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(LookUp(*table, keys), Filled(15000, 2));
  }
}

TEST(AvailableMemory, NothingLeavesABoundedTableWithoutIt) {
  auto table = Bounded(40000, "least_recent", "", {}, kDim);
  ASSERT_TRUE(Write(table.get(), From(0, 20000), 1).ok());
  const Left left(kMiB);
  ExpectExhausted(Write(table.get(), From(100000, 30000), 2));
  EXPECT_EQ(LookUp(*table, From(0, 20000)), Filled(20000, 1));
  EXPECT_EQ(table->size(), 20000);
  EXPECT_EQ(table->use().evicted, 0);
}

// One training step.
class Step {
 public:
  // Its ids are below `num_rows`, most of them.
  explicit Step(int64_t num_rows) {
    RandomBagsOptions options;
    options.num_bags = 500;
    options.max_ids = 100;
    options.num_rows = num_rows;
    features_.Add(options, 1);
  }

  absl::Status Run(EmbeddingTable* table) {
    const auto sink = table->Write();
    TableUpdate update;
    update.sink = sink.get();
    update.rule = rule_.get();
    update.learning_rate = 0.1f;
    update.features = features_.features();
    return GroupedUpdate({&update, 1}, NonFinite::kSkip, &executor_);
  }

 private:
  const std::unique_ptr<UpdateRule> rule_ = UpdateRule::Parse("sgd").value();
  GradientFeatures features_{kDim};
  ThreadExecutor executor_{2};
};

class NewIdsMemory : public testing::TestWithParam<const char*> {};

TEST_P(NewIdsMemory, IsAskedForNewIdsAlone) {
  EmbeddingTable::Options options;
  options.dim = kDim;
  options.admission = GetParam();
  auto table = *EmbeddingTable::Create(
      options, *InitialRows::Create("constant", {0}, /*seed=*/1, kDim));
  ASSERT_TRUE(Write(table.get(), From(0, 8000), 1).ok());
  Step known(8000), new_ids(20000);
  const Left left(kMiB / 2);
  EXPECT_TRUE(known.Run(table.get()).ok());  // 2 MB if all were new.
  EXPECT_EQ(table->size(), 8000);
  const auto before = LookUp(*table, From(0, 8000));
  EXPECT_NE(before, Filled(8000, 1));
  ExpectExhausted(new_ids.Run(table.get()));
  EXPECT_EQ(table->size(), 8000);
  EXPECT_EQ(LookUp(*table, From(0, 8000)), before);
  EXPECT_TRUE(known.Run(table.get()).ok());
}

TEST(UpdateMemory, IsNotNeededForIdsThatAreNotAdmitted) {
  for (const char* admission :
       {"count seen=3", "bloom seen=3 capacity=100000 error_rate=0.01"}) {
    EmbeddingTable::Options options;
    options.dim = kDim;
    options.admission = admission;
    auto table = *EmbeddingTable::Create(
        options, *InitialRows::Create("constant", {0}, /*seed=*/1, kDim));
    ASSERT_TRUE(Write(table.get(), From(100000, 20000), 1).ok());
    Step step(8000);  // 2 MB of rows, 0.3 MB of counts and places.
    const Left left(kMiB);
    EXPECT_TRUE(step.Run(table.get()).ok());
    EXPECT_TRUE(step.Run(table.get()).ok());
    EXPECT_EQ(table->size(), 20000);
    ExpectExhausted(step.Run(table.get()));
  }
}

INSTANTIATE_TEST_SUITE_P(Admission, NewIdsMemory,
                         testing::Values("", "count seen=1"));

}  // namespace
}  // namespace tfembed
