// Random operations against std::unordered_map, and churn.
#include <cstdint>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr float kInitial = -1;

// A table and what it should hold.
class Differential {
 public:
  Differential(int64_t dim, int num_threads, uint32_t seed)
      : dim_(dim), executor_(num_threads), random_(seed) {
    table_ = MakeTestTable(dim, kInitial);
  }

  // One operation with a random batch.
  void Step() {
    keys_.resize(Below(10) == 0 ? 1 + Below(3000) : Below(40));
    for (int64_t& key : keys_) key = RandomKey();
    numbers_.resize(keys_.size());
    for (float& number : numbers_) number = static_cast<float>(Below(1000));
    switch (Below(6)) {
      case 0:
      case 1:
        return Upsert();
      case 2:
        return Accum();
      case 3:
        return Remove();
      case 4:
        return Import();
      default:
        return Lookup();
    }
  }

  void CheckAll() {
    ASSERT_EQ(table_->size(), static_cast<int64_t>(expected_.size()));
    keys_.clear();
    for (const auto& entry : expected_) keys_.push_back(entry.first);
    Lookup();
  }

  void ClearOnce() {
    table_->Clear();
    expected_.clear();
  }

 private:
  uint32_t Below(uint32_t n) { return random_() % n; }

  int64_t RandomKey() {
    const int64_t i = Below(4000);
    return i % 3 == 0 ? i : i % 3 == 1 ? -i : i << 40;
  }

  void Upsert() {
    const std::vector<float> rows = RowsOf(numbers_, dim_);
    ASSERT_TRUE(table_->Upsert(keys_, rows.data(), &executor_).ok());
    for (size_t i = 0; i < keys_.size(); ++i) expected_[keys_[i]] = numbers_[i];
  }

  void Import() {
    const std::vector<float> rows = RowsOf(numbers_, dim_);
    ASSERT_TRUE(table_->Import(keys_, dim_, rows.data(), &executor_).ok());
    for (size_t i = 0; i < keys_.size(); ++i) expected_[keys_[i]] = numbers_[i];
  }

  void Accum() {
    std::unique_ptr<bool[]> exists(new bool[keys_.size()]);
    for (size_t i = 0; i < keys_.size(); ++i) exists[i] = Below(2) == 0;
    const std::vector<float> rows = RowsOf(numbers_, dim_);
    ASSERT_TRUE(
        table_->Accum(keys_, rows.data(), exists.get(), &executor_).ok());
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto found = expected_.find(keys_[i]);
      if (exists[i] && found != expected_.end()) {
        found->second += numbers_[i];
      } else if (!exists[i] && found == expected_.end()) {
        expected_[keys_[i]] = numbers_[i];
      }
    }
  }

  void Remove() {
    table_->Remove(keys_, &executor_);
    for (int64_t key : keys_) expected_.erase(key);
  }

  void Lookup() {
    const std::vector<float> values = LookUp(*table_, keys_, &executor_);
    const std::vector<int> exists = Exists(*table_, keys_, &executor_);
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto found = expected_.find(keys_[i]);
      const bool there = found != expected_.end();
      ASSERT_EQ(exists[i], there) << keys_[i];
      for (int64_t d = 0; d < dim_; ++d) {
        ASSERT_EQ(values[i * dim_ + d], there ? found->second : kInitial)
            << keys_[i];
      }
    }
  }

  const int64_t dim_;
  ThreadExecutor executor_;
  std::mt19937 random_;
  std::unique_ptr<EmbeddingTable> table_;
  std::unordered_map<int64_t, float> expected_;
  std::vector<int64_t> keys_;
  std::vector<float> numbers_;
};

class RandomOperations : public ::testing::TestWithParam<int> {};

TEST_P(RandomOperations, AgreeWithAnUnorderedMap) {
  const int dim = GetParam();
  Differential differential(dim, /*num_threads=*/1 + dim % 3, /*seed=*/dim);
  for (int step = 0; step < 4000; ++step) {
    differential.Step();
    if (step == 2500) differential.ClearOnce();
    if (HasFatalFailure()) return;
  }
  differential.CheckAll();
}

INSTANTIATE_TEST_SUITE_P(Widths, RandomOperations,
                         ::testing::Values(1, 3, 4, 8, 10, 16, 33, 64));

TEST(Churn, KeepsMemoryFlat) {
  constexpr int64_t kLive = 50000;
  constexpr int64_t kStep = 5000;
  auto table = MakeTestTable(8);
  std::vector<int64_t> keys(kStep);
  const std::vector<float> rows(kStep * 8, 1.0f);
  TableStats settled;
  for (int64_t round = 0; round < 200; ++round) {
    for (int64_t i = 0; i < kStep; ++i) keys[i] = round * kStep + i;
    ASSERT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
    for (int64_t& key : keys) key -= kLive;
    table->Remove(keys, nullptr);
    if (round == 20) settled = table->stats();
  }
  const TableStats stats = table->stats();
  EXPECT_EQ(stats.size, kLive);
  // A stripe keeps room for the most keys that chance ever gave it.
  EXPECT_LE(stats.row_bytes, settled.row_bytes * 1.15);
  EXPECT_LE(stats.index_bytes, settled.index_bytes * 1.25);
}

}  // namespace
}  // namespace tfembed
