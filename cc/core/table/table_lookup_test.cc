// Lookups whose keys are made a block at a time.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "cc/core/table/key_source.h"
#include "cc/core/testing/line_start.h"
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

// Floats of a row: within a cache line, of several, so many that the most keys'
// rows go past the caches, and that initial ones are not kept for that.
constexpr int64_t kDims[] = {3, 16, 32, 128, 1040};
constexpr int64_t kMostFloats = 5'000'000;  // In one lookup.

// By every how many keys are there.
class LookupFromTest : public testing::TestWithParam<int> {
 protected:
  bool is_there(int64_t i) const { return i % GetParam() == 0; }

  std::unique_ptr<EmbeddingTable> Fill(int64_t dim) const {
    auto table = MakeTestTable(dim, /*initial_value=*/0.5f);
    std::vector<int64_t> keys;
    std::vector<float> numbers;
    for (int64_t i = 0; i < kSizes[std::size(kSizes) - 1]; ++i) {
      if (!is_there(i)) continue;
      keys.push_back(-3 * i);
      numbers.push_back(static_cast<float>(i));
    }
    const std::vector<float> rows = RowsOf(numbers, dim);
    EXPECT_TRUE(table->Upsert(keys, rows.data(), nullptr).ok());
    return table;
  }

  // Looks up n keys.
  void ExpectRows(const EmbeddingTable& table, int64_t n, bool with_exists,
                  Executor* executor) const {
    const int64_t dim = table.dim();
    MadeKeys source(n);
    std::vector<float> memory(n * dim + kSpareFloats);
    float* const values = LineStart(&memory);
    std::unique_ptr<bool[]> exists(new bool[n]());
    table.LookupFrom(&source, values, with_exists ? exists.get() : nullptr,
                     executor);
    ASSERT_EQ(source.asked(), std::vector<int>(n, 1));
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(exists[i], with_exists && is_there(i)) << i;
      const auto wanted = is_there(i) ? static_cast<float>(i) : 0.5f;
      const float* const row = values + i * dim;
      ASSERT_EQ(std::count(row, row + dim, wanted), dim) << i;
    }
  }
};

TEST_P(LookupFromTest, GivesTheRowsOfItsKeys) {
  ThreadExecutor threads(3);
  for (const int64_t dim : kDims) {
    const auto table = Fill(dim);
    for (Executor* executor :
         {static_cast<Executor*>(nullptr), static_cast<Executor*>(&threads)}) {
      for (const bool with_exists : {false, true}) {
        for (const int64_t n : kSizes) {
          if (n * dim > kMostFloats) continue;
          SCOPED_TRACE(testing::Message() << n << " rows of " << dim);
          ExpectRows(*table, n, with_exists, executor);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(KeysThatAreThere, LookupFromTest,
                         testing::Values(1, 2, 100));

// Rows of halves, so many that they go past the caches.
TEST(TableLookup, OfHalves) {
  constexpr int64_t kDim = 256;
  constexpr int64_t kKeys = 17000;
  const ValueType type = ElementKind::kBfloat16;
  EmbeddingTable::Options options;
  options.dim = kDim;
  options.type = type;
  auto table =
      EmbeddingTable::Create(
          options, *InitialRows::Create("constant", {0.5}, 1, kDim, type))
          .value();
  std::vector<int64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<float> numbers(kKeys);  // All of them a bfloat16.
  for (int64_t i = 0; i < kKeys; ++i) numbers[i] = static_cast<float>(i % 251);
  std::vector<float> packed(kKeys * kDim / 2);
  type.FromFloats(RowsOf(numbers, kDim).data(), packed.data(), kKeys * kDim);
  ASSERT_TRUE(table
                  ->Upsert(absl::MakeSpan(keys).first(kKeys - 9), packed.data(),
                           nullptr)
                  .ok());

  std::vector<float> memory(packed.size() + kSpareFloats);
  ThreadExecutor threads(2);
  table->Lookup(keys, LineStart(&memory), nullptr, &threads);
  std::vector<float> values(kKeys * kDim);
  type.ToFloats(LineStart(&memory), values.data(), values.size());
  for (int64_t i = 0; i < kKeys; ++i) {
    const float wanted = i < kKeys - 9 ? numbers[i] : 0.5f;
    const float* const row = values.data() + i * kDim;
    ASSERT_EQ(std::count(row, row + kDim, wanted), kDim) << i;
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
