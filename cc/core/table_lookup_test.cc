// Lookups whose keys are made a block at a time.
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cc/core/key_source.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

// Key i is -3 i, made when it is asked for. Counts how often.
class MadeKeys final : public KeySource {
 public:
  explicit MadeKeys(int64_t n) : asked_(n) {}

  int64_t size() const override { return asked_.size(); }
  void Begin() override { ++begun_; }
  const int64_t* Block(int64_t begin, int64_t n,
                       int64_t* buffer) const override {
    EXPECT_EQ(begun_, 1);
    EXPECT_LE(n, kMostKeys);
    for (int64_t i = 0; i < n; ++i) {
      buffer[i] = -3 * (begin + i);
      ++asked_[begin + i];
    }
    return buffer;
  }

  // How often each was asked for.
  std::vector<int> asked() const { return {asked_.begin(), asked_.end()}; }

 private:
  int begun_ = 0;
  mutable std::vector<std::atomic<int>> asked_;
};

// Blocks and tasks that are full, and that are not.
constexpr int64_t kSizes[] = {0, 1, 127, 128, 129, 1024, 4097, 20001};

TEST(TableLookup, FromASourceGivesTheRowsOfItsKeys) {
  constexpr int64_t kDim = 3;
  auto table = MakeTestTable(kDim, /*initial_value=*/0.5f);
  std::vector<int64_t> keys;
  std::vector<float> numbers;
  for (int64_t i = 0; i < 20001; i += 2) {  // Every second key is there.
    keys.push_back(-3 * i);
    numbers.push_back(static_cast<float>(i));
  }
  ASSERT_TRUE(table->Upsert(keys, RowsOf(numbers, kDim).data(), nullptr).ok());
  ThreadExecutor threads(3);
  for (Executor* executor :
       {static_cast<Executor*>(nullptr), static_cast<Executor*>(&threads)}) {
    for (int64_t n : kSizes) {
      MadeKeys source(n);
      std::vector<float> values(n * kDim);
      std::unique_ptr<bool[]> exists(new bool[n]());
      table->LookupFrom(&source, values.data(), exists.get(), executor);
      EXPECT_EQ(source.asked(), std::vector<int>(n, 1)) << n;
      for (int64_t i = 0; i < n; ++i) {
        const bool is_there = i % 2 == 0;
        ASSERT_EQ(exists[i], is_there) << i << " of " << n;
        const auto wanted = is_there ? static_cast<float>(i) : 0.5f;
        for (int64_t d = 0; d < kDim; ++d) {
          ASSERT_EQ(values[i * kDim + d], wanted) << i << " of " << n;
        }
      }
    }
  }
}

TEST(TableLookup, OfASourceCountsHitsAndMisses) {
  auto table = MakeTestTable(1);
  ASSERT_TRUE(table->Upsert({0, -3}, RowsOf({1, 2}, 1).data(), nullptr).ok());
  MadeKeys source(300);
  std::vector<float> values(300);
  table->LookupFrom(&source, values.data(), nullptr, nullptr);
  EXPECT_EQ(table->use().hits, 2);
  EXPECT_EQ(table->use().misses, 298);
}

TEST(KeySpan, GivesKeysWhereTheyLie) {
  const std::vector<int64_t> keys = {5, 6, 7, 8};
  const KeySpan span(keys);
  EXPECT_EQ(span.size(), 4);
  int64_t buffer[KeySource::kMostKeys];
  EXPECT_EQ(span.Block(0, 2, buffer), keys.data());
  EXPECT_EQ(span.Block(3, 1, buffer), keys.data() + 3);
}

}  // namespace
}  // namespace tfembed
