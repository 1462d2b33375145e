// Large batches: all of whose rows are there, or all but a few.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kKeys = 30'000;  // In most tables; multiples of 3.
constexpr int64_t kDims[] = {1, 8, 24, 64};

// A table and what it should hold: by key one number, which is that of all
// columns. Numbers are small integers, so that all sums are exact.
class Batches {
 public:
  Batches(int64_t dim, int threads, int64_t num_keys = kKeys)
      : dim_(dim), executor_(threads), table_(MakeTestTable(dim)) {
    Upsert(FirstKeys(num_keys));
  }

  // Draws n of `distinct` keys that are there.
  std::vector<int64_t> Draw(int64_t n, int64_t distinct) {
    std::vector<int64_t> keys(n);
    for (int64_t& key : keys) key = 3 * (random_() % distinct);
    return keys;
  }

  // The first n keys in any order, but that one in 100 is another's, which
  // comes twice: few enough for the order of the batch, mostly.
  std::vector<int64_t> Shuffle(int64_t n) {
    std::vector<int64_t> keys = FirstKeys(n);
    std::shuffle(keys.begin(), keys.end(), random_);
    for (int64_t i = 0; i < n / 100; ++i) {
      keys[random_() % n] = keys[random_() % n];
    }
    return keys;
  }

  void Upsert(const std::vector<int64_t>& keys) {
    const std::vector<float> values = Values(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) model_[keys[i]] = numbers_[i];
    ASSERT_TRUE(table_->Upsert(keys, values.data(), &executor_).ok());
  }

  // One key in eight is said not to be there.
  void Accum(const std::vector<int64_t>& keys, bool with_old) {
    const size_t n = keys.size();
    const std::vector<float> old = Values(n);
    const std::vector<float> old_numbers = numbers_;
    const std::vector<float> values = Values(n);
    const std::unique_ptr<bool[]> exists(new bool[n]);
    for (size_t i = 0; i < n; ++i) {
      exists[i] = random_() % 8 != 0;
      const auto found = model_.find(keys[i]);
      if (found != model_.end()) {
        const float change = numbers_[i] - (with_old ? old_numbers[i] : 0);
        if (exists[i]) found->second += change;
      } else if (!exists[i]) {
        model_[keys[i]] = numbers_[i];
      }
    }
    ASSERT_TRUE(table_
                    ->Accum(keys, values.data(),
                            with_old ? old.data() : nullptr, exists.get(),
                            &executor_)
                    .ok());
  }

  void ExpectRows() {
    std::vector<int64_t> keys;
    std::vector<float> wanted;
    for (const auto& [key, number] : model_) {
      keys.push_back(key);
      wanted.insert(wanted.end(), dim_, number);
    }
    ASSERT_EQ(table_->size(), static_cast<int64_t>(keys.size()));
    const std::vector<float> rows = LookUp(*table_, keys);
    const auto [row, number] =
        std::mismatch(rows.begin(), rows.end(), wanted.begin());
    if (row == rows.end()) return;
    const int64_t at = row - rows.begin();
    FAIL() << "key " << keys[at / dim_] << ", column " << at % dim_ << ": "
           << *row << ", not " << *number;
  }

 private:
  static std::vector<int64_t> FirstKeys(int64_t n) {
    std::vector<int64_t> keys(n);
    for (int64_t i = 0; i < n; ++i) keys[i] = 3 * i;
    return keys;
  }

  // Returns the values of n rows, whose numbers are kept.
  std::vector<float> Values(int64_t n) {
    numbers_.resize(n);
    std::vector<float> values;
    for (float& number : numbers_) {
      number = static_cast<float>(random_() % 1000);
      values.insert(values.end(), dim_, number);
    }
    return values;
  }

  const int64_t dim_;
  std::mt19937_64 random_{7};
  ThreadExecutor executor_;
  const std::unique_ptr<EmbeddingTable> table_;
  std::map<int64_t, float> model_;
  std::vector<float> numbers_;
};

// By threads.
class WriteInOrderTest : public testing::TestWithParam<int> {
 protected:
  // Keys of batches: none, some and most come twice.
  static constexpr int64_t kDistinct[] = {kKeys, 9'000, 500};
};

TEST_P(WriteInOrderTest, OfRepeatedKeysTheLastOneStays) {
  for (const int64_t dim : kDims) {
    SCOPED_TRACE(dim);
    Batches batches(dim, GetParam());
    for (const int64_t distinct : kDistinct) {
      for (const int64_t n : {8191, 8192, 8193, 20'000}) {
        batches.Upsert(batches.Draw(n, distinct));
        batches.ExpectRows();
      }
    }
  }
}

TEST_P(WriteInOrderTest, EachOccurrenceOfARepeatedKeyIsAdded) {
  for (const int64_t dim : kDims) {
    SCOPED_TRACE(dim);
    Batches batches(dim, GetParam());
    for (const int64_t distinct : kDistinct) {
      for (const bool with_old : {false, true}) {
        batches.Accum(batches.Draw(20'000, distinct), with_old);
        batches.ExpectRows();
      }
    }
  }
}

TEST_P(WriteInOrderTest, FewKeysComeTwice) {
  for (const int64_t dim : kDims) {
    SCOPED_TRACE(dim);
    Batches batches(dim, GetParam());
    for (const int64_t n : {8192, 30'000}) {
      batches.Upsert(batches.Shuffle(n));
      batches.ExpectRows();
      for (const bool with_old : {false, true}) {
        batches.Accum(batches.Shuffle(n), with_old);
        batches.ExpectRows();
      }
    }
  }
}

// One thread would have most of the work.
TEST_P(WriteInOrderTest, OneKeyComesInEveryOtherPlace) {
  Batches batches(16, GetParam());
  std::vector<int64_t> keys = batches.Draw(20'000, kKeys);
  for (size_t i = 0; i < keys.size(); i += 2) keys[i] = 3;
  batches.Upsert(keys);
  batches.ExpectRows();
  batches.Accum(keys, /*with_old=*/true);
  batches.ExpectRows();
}

// So many that rows go past the caches, up to the most and one more.
TEST(WriteInOrder, LargeBatches) {
  constexpr int64_t kMost = 131'072;
  Batches batches(16, /*threads=*/3, kMost + 1);
  for (const int64_t n : {kMost, kMost + 1}) {
    batches.Upsert(batches.Shuffle(n));
    batches.Accum(batches.Shuffle(n), /*with_old=*/true);
    batches.ExpectRows();
  }
}

TEST_P(WriteInOrderTest, NewKeysAreInsertedWhereverTheyStand) {
  Batches batches(8, GetParam());
  int64_t next = 1;
  for (const int64_t at : {0, 127, 128, 9'999, 10'000, 19'999}) {
    for (const bool accum : {false, true}) {
      std::vector<int64_t> keys = batches.Shuffle(20'000);
      keys[at] = next;
      keys[at / 2] = next;
      next += 3;
      accum ? batches.Accum(keys, true) : batches.Upsert(keys);
      batches.ExpectRows();
    }
  }
}

// Threads find the stripes' locks taken by each other, mostly: each key's
// rows come from one thread, all the same number in all columns.
TEST_P(WriteInOrderTest, ThreadsWriteAtOnce) {
  constexpr int64_t kN = 10'000, kDim = 16;
  const int threads = std::min(GetParam(), 5);
  auto table = MakeTestTable(kDim);
  const auto run = [&](int thread) {
    ThreadExecutor executor(2);
    std::vector<int64_t> keys(kN);
    std::vector<float> values(kN * kDim);
    for (int64_t i = 0; i < kN; ++i) keys[i] = i * threads + thread;
    for (int turn = 0; turn < 20; ++turn) {
      std::fill(values.begin(), values.end(), thread * 100.0f + turn);
      ASSERT_TRUE(table->Upsert(keys, values.data(), &executor).ok());
    }
  };
  std::vector<std::thread> writers;
  for (int thread = 0; thread < threads; ++thread) {
    writers.emplace_back(run, thread);
  }
  for (std::thread& writer : writers) writer.join();
  ASSERT_EQ(table->size(), kN * threads);
  std::vector<int64_t> keys(kN * threads);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<float> rows = LookUp(*table, keys);
  for (size_t at = 0; at < rows.size(); ++at) {
    const int64_t key = at / kDim;
    ASSERT_EQ(rows[at], key % threads * 100.0f + 19) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, WriteInOrderTest,
                         testing::Values(1, 3, 8, 9));

TEST(WriteInOrder, RowsWithANaNAreCountedOnceEach) {
  constexpr int64_t kN = 20'000;
  auto table = MakeTestTable(16);
  ThreadExecutor executor(4);
  std::vector<int64_t> keys(kN);
  for (int64_t i = 0; i < kN; ++i) keys[i] = i % (kN - 300);
  std::vector<float> values(kN * 16, 1.0f);
  ASSERT_TRUE(table->Upsert(keys, values.data(), &executor).ok());
  ASSERT_EQ(table->use().nan_rows, 0);
  // The first 300 keys come again at the end.
  for (const int64_t i : {1, 297, 9'000, 19'998}) {
    values[i * 16 + 5] = std::numeric_limits<float>::quiet_NaN();
  }
  ASSERT_TRUE(table->Upsert(keys, values.data(), &executor).ok());
  EXPECT_EQ(table->use().nan_rows, 4);
  const std::vector<float> rows = LookUp(*table, {1, 297, 9'000, 298});
  EXPECT_FALSE(std::isnan(rows[5]));
  EXPECT_FALSE(std::isnan(rows[21]));
  EXPECT_TRUE(std::isnan(rows[37]));
  EXPECT_TRUE(std::isnan(rows[53]));
}

}  // namespace
}  // namespace tfembed
