// Random operations of all kinds against std::unordered_map.
//
// TFEMBED_FUZZ_OPERATIONS says how many for each table (Bazel: --test_env),
// TFEMBED_FUZZ_SEED which.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <thread>
#include <vector>

#include "cc/core/testing/table_fuzzer.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

int64_t Operations() {
  return FromEnvironment("TFEMBED_FUZZ_OPERATIONS", 20000);
}

uint32_t Seed() { return FromEnvironment("TFEMBED_FUZZ_SEED", 1); }

// n keys, every `step` numbers from `first` on; small, negative, far apart.
std::vector<int64_t> Keys(int64_t first, int64_t step, int64_t n) {
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t number = first + i * step;
    keys.push_back(i % 3 == 0 ? number : i % 3 == 1 ? ~number : number << 40);
  }
  return keys;
}

struct Shape {
  int64_t dim;
  int shards;
  int threads;  // In the executor.
};

class TableFuzz : public ::testing::TestWithParam<Shape> {};

TEST_P(TableFuzz, AgreesWithAnUnorderedMap) {
  const Shape& shape = GetParam();
  auto shards = TableFuzzer::NewTable(shape.dim, shape.shards);
  ThreadExecutor executor(shape.threads);
  TableFuzzer::Options options;
  options.seed = Seed();
  options.keys = Keys(0, 1, 4000);
  options.keys.push_back(std::numeric_limits<int64_t>::min());
  options.keys.push_back(std::numeric_limits<int64_t>::max());
  TableFuzzer fuzzer(options, &shards, &executor);
  for (int64_t i = 0; i < Operations(); ++i) {
    fuzzer.Step();
    if (HasFatalFailure()) FAIL() << "operation " << i;
  }
  fuzzer.CheckAll();
}

INSTANTIATE_TEST_SUITE_P(Shapes, TableFuzz,
                         ::testing::Values(Shape{8, 1, 2}, Shape{3, 2, 1},
                                           Shape{1, 3, 3}, Shape{17, 7, 2}));

TEST(BoundedTableFuzz, AgreesWithAnUnorderedMapThatIsToldWhatGoes) {
  constexpr int64_t kMaxSize = 60;
  auto shards = TableFuzzer::NewTable(4, 1, kMaxSize);
  ThreadExecutor executor(2);
  TableFuzzer::Options options;
  options.seed = Seed();
  options.keys = Keys(0, 1, 200);
  options.max_size = kMaxSize;
  TableFuzzer fuzzer(options, &shards, &executor);
  for (int64_t i = 0; i < Operations(); ++i) {
    fuzzer.Step();
    if (HasFatalFailure()) FAIL() << "operation " << i;
  }
  fuzzer.CheckAll();
}

// Each thread knows what its own keys hold. The keys that all of them write are
// checked for whole rows.
TEST(ThreadedTableFuzz, EachThreadFindsItsKeysAsItLeftThem) {
  constexpr int kThreads = 8;
  constexpr int64_t kDim = 8, kShared = 300;
  auto shards = TableFuzzer::NewTable(kDim, 2);
  const std::vector<int64_t> shared = Keys(kThreads, kThreads + 1, kShared);
  std::atomic<bool> failed{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      ThreadExecutor executor(1 + t % 2);
      TableFuzzer::Options options;
      options.seed = Seed() + t;
      options.keys = Keys(t, kThreads + 1, 500);
      options.is_alone = false;
      TableFuzzer fuzzer(options, &shards, &executor);
      for (int64_t i = t; i < Operations() && !failed; i += kThreads) {
        fuzzer.Step();
        const std::vector<int64_t> key = {shared[(i * 7) % kShared]};
        EmbeddingTable* const table = shards[i % 2].get();
        const std::vector<float> row = RowsOf({i * 1.0f}, kDim);
        EXPECT_TRUE(table->Upsert(key, row.data(), &executor).ok());
        if (i % 5 == 0) table->Remove(key, &executor);
        const std::vector<float> seen = LookUp(*table, shared, &executor);
        for (int64_t k = 0; k < kShared; ++k) {
          for (int64_t c = 1; c < kDim; ++c) {
            EXPECT_EQ(seen[k * kDim + c], seen[k * kDim]) << shared[k];
          }
        }
        if (::testing::Test::HasFailure()) failed = true;
      }
      fuzzer.CheckAll();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tfembed
