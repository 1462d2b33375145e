// Tables of bounded size.
#include "cc/core/table/table_bound.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/support/hash.h"
#include "cc/core/testing/bounded_table.h"
#include "cc/core/testing/test_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A training step that adds 1 to the rows of distinct ids.
absl::Status Train(EmbeddingTable* table, const std::vector<int64_t>& ids) {
  auto sink = table->Write();
  absl::Status status = sink->hold()->Pin(ids);
  if (!status.ok()) return status;
  sink->hold()->MakeRoom();
  for (int64_t id : ids) {
    const int part = sink->PartOf(sink->Rank(id));
    EXPECT_TRUE(sink->Reserve(part, nullptr, 1).ok());
    sink->Lock(part);
    MutableRow row;
    sink->FindOrInsert(part, &id, 1, &row);
    for (int64_t c = 0; row.value != nullptr && c < kBoundedDim; ++c) {
      row.value[c] += 1;
    }
    sink->Unlock(part);
  }
  return absl::OkStatus();
}

TEST(Bound, IsNeverExceededAndTheBatchStays) {
  auto table = Bounded(1000, "least_recent");
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    std::vector<int64_t> keys(random() % 700);
    for (int64_t& key : keys) key = random() % 5000;
    ASSERT_TRUE(Upsert(table.get(), keys).ok());
    ASSERT_LE(table->size(), 1000);
    ASSERT_EQ(Exists(*table, keys), All(keys.size(), true));
    const std::vector<float> rows = LookUp(*table, keys);
    for (size_t k = 0; k < keys.size(); ++k) ASSERT_EQ(rows[2 * k], keys[k]);
  }
  EXPECT_EQ(table->size(), 1000);
  EXPECT_GT(table->use().evicted, 10000);
}

TEST(Bound, HoldsForTraining) {
  auto table = Bounded(1000, "least_frequent");
  std::mt19937_64 random(2);
  for (int i = 0; i < 100; ++i) {
    const std::vector<int64_t> keys = From(random() % 5000, random() % 900);
    ASSERT_TRUE(Train(table.get(), keys).ok());
    ASSERT_LE(table->size(), 1000);
    ASSERT_EQ(Exists(*table, keys), All(keys.size(), true));
  }
}

TEST(Bound, TheLeastRecentRowsGoFirst) {
  auto table = Bounded(100, "least_recent");
  ASSERT_TRUE(Upsert(table.get(), From(0, 50)).ok());
  ASSERT_TRUE(Upsert(table.get(), From(50, 50)).ok());
  // Eight times as many as the table has are looked at: all.
  ASSERT_TRUE(Train(table.get(), From(1000, 50)).ok());
  EXPECT_EQ(Exists(*table, From(0, 50)), All(50, false));
  EXPECT_EQ(Exists(*table, From(50, 50)), All(50, true));
  EXPECT_EQ(table->use().evicted, 50);
}

TEST(Bound, SamplesPreferTheLeastFrequent) {
  auto table = Bounded(20000, "least_frequent");
  ASSERT_TRUE(Upsert(table.get(), From(0, 20000)).ok());
  ASSERT_TRUE(Upsert(table.get(), From(0, 10000)).ok());  // The good half.
  for (int64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(Upsert(table.get(), From(100000 + 100 * i, 100)).ok());
  }
  const std::vector<int> good = Exists(*table, From(0, 10000));
  EXPECT_GE(std::count(good.begin(), good.end(), 1), 9990);
  EXPECT_EQ(table->size(), 20000);
}

// Most keys come once, so that most rows have the same worth.
TEST(Bound, HasRowsForNoMoreKeysThanTheBound) {
  for (const char* policy : {"least_frequent", "least_recent"}) {
    auto table = Bounded(1000, policy);
    std::mt19937_64 random(3);
    for (int i = 0; i < 100; ++i) {
      std::vector<int64_t> keys = From(0, 20);
      while (keys.size() < 300) keys.push_back(random() % 50000);
      ASSERT_TRUE(Upsert(table.get(), keys).ok());
    }
    const TableStats stats = table->stats();
    EXPECT_EQ(stats.size, 1000);
    // A row has the policy's note beside its numbers.
    EXPECT_EQ(stats.row_bytes, 1000 * 4 * (kBoundedDim + 1)) << policy;
    EXPECT_LE(stats.index_bytes, 35 * 1000) << policy;
  }
}

TEST(Bound, EvictsFromAllStripesAlike) {
  auto table = Bounded(3200, "least_frequent");
  ASSERT_TRUE(Upsert(table.get(), From(0, 3200)).ok());
  ASSERT_TRUE(Upsert(table.get(), From(3200, 320)).ok());
  const std::vector<int> stayed = Exists(*table, From(0, 3200));
  std::array<int, kNumStripes> gone = {};
  for (int64_t key = 0; key < 3200; ++key) {
    gone[StripeOf(HashKey(key))] += 1 - stayed[key];
  }
  EXPECT_LE(*std::max_element(gone.begin(), gone.end()), 30);  // Of 320.
}

TEST(Bound, ABatchWithTooManyKeysChangesNothing) {
  auto table = Bounded(100, "smallest_norm");
  ASSERT_TRUE(Upsert(table.get(), From(0, 100)).ok());
  for (const absl::Status& status : {Upsert(table.get(), From(50, 101)),
                                     Train(table.get(), From(50, 101))}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("101 distinct keys"));
  }
  EXPECT_EQ(Exists(*table, From(0, 100)), All(100, true));
  EXPECT_EQ(table->size(), 100);
}

TEST(Bound, RepeatedKeysCountOnce) {
  auto table = Bounded(3, "least_recent");
  ASSERT_TRUE(Upsert(table.get(), {1, 2, 2, 1, 3, 3, 3}).ok());
  EXPECT_EQ(table->size(), 3);
  EXPECT_EQ(table->use().evicted, 0);
}

TEST(Bound, KeysThatAreNotAdmittedEvictNothing) {
  auto table = Bounded(10, "least_recent", "count seen=2");
  ASSERT_TRUE(Upsert(table.get(), From(0, 10)).ok());
  ASSERT_TRUE(Train(table.get(), From(100, 5)).ok());
  EXPECT_EQ(Exists(*table, From(0, 10)), All(10, true));
  ASSERT_TRUE(Train(table.get(), From(100, 5)).ok());
  EXPECT_EQ(Exists(*table, From(100, 5)), All(5, true));
  EXPECT_EQ(table->size(), 10);
}

TEST(Bound, RowsOfAnyTypeGoByTheirNorm) {
  using Kind = ElementKind;
  for (const Kind kind : {Kind::kFloat16, Kind::kBfloat16, Kind::kFloat64,
                          Kind::kInt8, Kind::kInt32, Kind::kInt64}) {
    const ValueType type = kind;
    auto table = Bounded(3, "smallest_norm", "", type);
    const double numbers[] = {-3, 4, 1, 1, 0, 5, -2, 0};  // Rows 1 to 4.
    char rows[sizeof(numbers)];
    type.FromDoubles(numbers, rows, 8);
    ASSERT_TRUE(table->Upsert({1, 2, 3}, rows, nullptr).ok());
    ASSERT_TRUE(table->Upsert({4}, rows + 6 * type.size(), nullptr).ok());
    bool exists[4];
    table->Contains({1, 2, 3, 4}, exists, nullptr);
    EXPECT_THAT(exists, ElementsAre(true, false, true, true)) << type.name();
  }
}

TEST(Bound, DoesNotGoWithCountersThatKeysShare) {
  EmbeddingTable::Options options;
  options.dim = kBoundedDim;
  options.max_size = 10;
  options.eviction = "least_recent";
  options.admission = "bloom seen=2 capacity=100";
  auto initial_rows = InitialRows::Create("constant", {0.5}, 1, kBoundedDim);
  auto table = EmbeddingTable::Create(options, *std::move(initial_rows));
  EXPECT_TRUE(absl::IsInvalidArgument(table.status()));
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("'bloom "));
}

TEST(Bound, NeedsAPolicy) {
  EmbeddingTable::Options options;
  options.dim = kBoundedDim;
  for (int64_t max_size : {5, -1}) {
    options.max_size = max_size;
    auto initial_rows = InitialRows::Create("constant", {0.5}, 1, kBoundedDim);
    auto table = EmbeddingTable::Create(options, *std::move(initial_rows));
    EXPECT_TRUE(absl::IsInvalidArgument(table.status()));
  }
}

TEST(Bound, HoldsWhileOthersRemoveKeysOfTheBatch) {
  auto table = Bounded(64, "least_recent");
  std::atomic<bool> done{false};
  std::vector<std::thread> others;
  for (int t = 0; t < 2; ++t) {
    others.emplace_back([&table, &done] {
      while (!done) {
        table->Remove(From(0, 64), nullptr);
        std::this_thread::yield();
      }
    });
  }
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(Upsert(table.get(), From(i % 2 * 32, 64)).ok());
    ASSERT_LE(table->size(), 64);
  }
  done = true;
  for (std::thread& other : others) other.join();
}

TEST(Bound, HoldsUnderConcurrentInserts) {
  auto table = Bounded(500, "least_recent");
  std::atomic<bool> done{false};
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&table, t] {
      std::mt19937_64 random(t);
      for (int i = 0; i < 100; ++i) {
        const std::vector<int64_t> keys = From(random() % 4000, 400);
        const absl::Status status = i % 2 == t % 2 ? Upsert(table.get(), keys)
                                                   : Train(table.get(), keys);
        ASSERT_TRUE(status.ok()) << status;
        if (i % 10 == 0) table->Remove(From(random() % 4000, 50), nullptr);
      }
    });
  }
  std::thread reader([&] {
    while (!done) {
      ASSERT_LE(table->size(), 500);
      LookUp(*table, From(0, 100));
    }
  });
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
  EXPECT_LE(table->size(), 500);
}

}  // namespace
}  // namespace tfembed
