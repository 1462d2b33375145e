// A batch of writes or removals beside readers, who see all of it or nothing:
// upserts, accums, imports, removals and evictions; of keys that are there and
// of new ones, in tables that grow and in tables that are full; few keys and
// more than are written at once. Updates are seen row by row, and other shards
// are other tables.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/bounded_table.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 4;
constexpr int kTurns = 60;

// The rows of some keys as one lookup found them.
struct Found {
  std::vector<float> rows;
  std::vector<int> exists;

  // Whether keys [begin, end) are all there, or none, with the same number in
  // all columns.
  bool IsWhole(int64_t begin, int64_t end) const {
    const int64_t dim = rows.size() / exists.size();
    for (int64_t i = begin; i < end; ++i) {
      if (exists[i] != exists[begin]) return false;
    }
    for (int64_t i = begin * dim; i < end * dim; ++i) {
      if (rows[i] != rows[begin * dim]) return false;
    }
    return true;
  }
  bool IsWhole() const { return IsWhole(0, exists.size()); }
};

Found Find(const EmbeddingTable& table, const std::vector<int64_t>& keys,
           Executor* executor) {
  Found found;
  found.rows.resize(keys.size() * table.dim());
  const std::unique_ptr<bool[]> exists(new bool[keys.size()]());
  table.Lookup(keys, found.rows.data(), exists.get(), executor);
  found.exists.assign(exists.get(), exists.get() + keys.size());
  return found;
}

// How many lookups of `keys` by some readers were torn while write(turn) was
// called for each turn.
int64_t CountTorn(
    const EmbeddingTable& table, const std::vector<int64_t>& keys,
    const std::function<void(int turn, Executor* executor)>& write,
    const std::function<bool(const Found&)>& is_whole =
        [](const Found& found) { return found.IsWhole(); },
    int num_readers = 2) {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> torn{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < num_readers; ++reader) {
    readers.emplace_back([&] {
      ThreadExecutor executor(2);
      while (!stop) {
        torn += !is_whole(Find(table, keys, &executor));
        std::this_thread::yield();
      }
    });
  }
  ThreadExecutor executor(2);
  for (int turn = 1; turn <= kTurns; ++turn) write(turn, &executor);
  stop = true;
  for (std::thread& reader : readers) reader.join();
  return torn;
}

void Fill(EmbeddingTable* table, const std::vector<int64_t>& keys, float number,
          Executor* executor) {
  const std::vector<float> rows(keys.size() * table->dim(), number);
  ASSERT_TRUE(table->Upsert(keys, rows.data(), executor).ok());
}

// By the keys of a batch: by one thread, dealt to stripes, and in order.
class WholeBatchesTest : public testing::TestWithParam<int64_t> {
 protected:
  WholeBatchesTest() { Fill(table_.get(), keys_, 0, nullptr); }

  const std::vector<int64_t> keys_ = From(0, GetParam());
  const std::unique_ptr<EmbeddingTable> table_ = MakeTestTable(kDim);
};

TEST_P(WholeBatchesTest, UpsertsAreSeenWhole) {
  const auto upsert = [&](int turn, Executor* executor) {
    Fill(table_.get(), keys_, turn, executor);
  };
  EXPECT_EQ(CountTorn(*table_, keys_, upsert), 0);
}

TEST_P(WholeBatchesTest, AccumsAreSeenWhole) {
  const std::vector<float> ones(keys_.size() * kDim, 1);
  const std::unique_ptr<bool[]> exists(new bool[keys_.size()]);
  std::memset(exists.get(), 1, keys_.size());
  const auto accum = [&](int turn, Executor* executor) {
    ASSERT_TRUE(
        table_->Accum(keys_, ones.data(), nullptr, exists.get(), executor)
            .ok());
  };
  EXPECT_EQ(CountTorn(*table_, keys_, accum), 0);
}

TEST_P(WholeBatchesTest, ImportsAreSeenWhole) {
  const auto import = [&](int turn, Executor* executor) {
    const std::vector<float> rows(keys_.size() * kDim, turn);
    ASSERT_TRUE(table_->Import(keys_, kDim, rows.data(), executor).ok());
  };
  EXPECT_EQ(CountTorn(*table_, keys_, import), 0);
}

TEST_P(WholeBatchesTest, RemovalsAndInsertsAreSeenWhole) {
  const auto change = [&](int turn, Executor* executor) {
    turn % 4 == 1 ? table_->Evict(keys_, executor)
                  : table_->Remove(keys_, executor);
    Fill(table_.get(), keys_, 1, executor);
  };
  EXPECT_EQ(CountTorn(*table_, keys_, change), 0);
}

// Each turn writes the old keys and as many new ones.
TEST_P(WholeBatchesTest, NewKeysComeWithTheOldOnesWhileTheTableGrows) {
  const int64_t n = GetParam() / 8;
  const std::vector<int64_t> all = From(0, n * (kTurns + 1));
  table_->Clear();
  Fill(table_.get(), From(0, n), 0, nullptr);
  const auto write = [&](int turn, Executor* executor) {
    std::vector<int64_t> keys = From(0, n);
    const std::vector<int64_t> added = From(turn * n, n);
    keys.insert(keys.end(), added.begin(), added.end());
    Fill(table_.get(), keys, turn, executor);
  };
  const auto is_whole = [&](const Found& found) {
    const auto turn = static_cast<int64_t>(found.rows[0]);
    const auto there =
        std::accumulate(found.exists.begin(), found.exists.end(), int64_t{0});
    return found.IsWhole(0, n) && there == n * (turn + 1);
  };
  EXPECT_EQ(CountTorn(*table_, all, write, is_whole), 0);
}

// A full table evicts other keys for the new ones of a batch.
TEST_P(WholeBatchesTest, AFullTableShowsBatchesWhole) {
  const int64_t n = GetParam();
  const auto table = Bounded(2 * n, "least_recent seconds=0");
  Fill(table.get(), keys_, 0, nullptr);
  Fill(table.get(), From(-2 * n, 2 * n), 0, nullptr);
  const auto write = [&](int turn, Executor* executor) {
    std::vector<int64_t> keys = keys_;
    const std::vector<int64_t> added = From(n + turn * n / 4, n / 4);
    keys.insert(keys.end(), added.begin(), added.end());
    Fill(table.get(), keys, turn, executor);
    ASSERT_EQ(table->size(), 2 * n);
  };
  EXPECT_EQ(CountTorn(*table, keys_, write), 0);
}

TEST_P(WholeBatchesTest, OverlappingWritersNeitherMixNorWaitForEachOther) {
  std::vector<int64_t> reversed(keys_.rbegin(), keys_.rend());
  std::thread other([&] {
    ThreadExecutor executor(2);
    for (int turn = 0; turn < kTurns; ++turn) {
      Fill(table_.get(), reversed, -turn, &executor);
    }
  });
  const auto upsert = [&](int turn, Executor* executor) {
    Fill(table_.get(), keys_, turn, executor);
  };
  EXPECT_EQ(CountTorn(*table_, keys_, upsert), 0);
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Keys, WholeBatchesTest,
                         testing::Values(40, 2000, 9000));

TEST(WholeBatches, OfMoreKeysThanAreWrittenAtOnceEachPartIsSeenWhole) {
  constexpr int64_t kPart = EmbeddingTable::kKeysAtOnce;
  const std::vector<int64_t> keys = From(0, kPart + 500);
  const auto table = MakeTestTable(1);
  Fill(table.get(), keys, 0, nullptr);
  const auto write = [&](int turn, Executor* executor) {
    if (turn % 20 != 0) return;
    table->Remove(keys, executor);
    Fill(table.get(), keys, turn, executor);
    Fill(table.get(), keys, turn + 1, executor);
  };
  const auto is_whole = [](const Found& found) {
    return found.IsWhole(0, kPart) && found.IsWhole(kPart, found.exists.size());
  };
  EXPECT_EQ(CountTorn(*table, keys, write, is_whole), 0);
}

// The locks let readers past a writer that waits: among so many, it would wait
// for minutes.
TEST(WholeBatches, AWriterBesideManyReadersHasItsTurn) {
  const std::vector<int64_t> keys = From(0, 1000);
  const auto table = MakeTestTable(kDim);
  const auto upsert = [&](int turn, Executor* executor) {
    Fill(table.get(), keys, turn, executor);
  };
  const auto is_whole = [](const Found& found) { return found.IsWhole(); };
  EXPECT_EQ(CountTorn(*table, keys, upsert, is_whole, /*num_readers=*/8), 0);
}

TEST(WholeBatches, ReadersDoNotWaitBehindAWriterThatWaitsForASnapshot) {
  const std::vector<int64_t> keys = From(0, 100);
  const auto table = MakeTestTable(kDim);
  Fill(table.get(), keys, 0, nullptr);
  std::thread writer;
  {
    const auto snapshot = table->Freeze();
    writer = std::thread([&] { Fill(table.get(), keys, 1, nullptr); });
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      EXPECT_EQ(Find(*table, keys, nullptr).rows[0], 0);
    }
  }
  writer.join();
  EXPECT_EQ(Find(*table, keys, nullptr).rows[0], 1);
}

// Counting policies note each row once a batch, in however many parts.
TEST(WholeBatches, AKeyInTwoPartsOfABatchCountsOnce) {
  constexpr int64_t kPart = EmbeddingTable::kKeysAtOnce;
  std::vector<int64_t> keys = From(0, kPart + 2);
  keys[kPart + 1] = 7;
  const auto table = Bounded(2 * kPart, "least_frequent");
  Fill(table.get(), keys, 0, nullptr);
  Fill(table.get(), {8}, 0, nullptr);
  const auto top = table->FindTop("", 2, nullptr);
  ASSERT_TRUE(top.ok());
  EXPECT_EQ((*top)[0].key, 8);
  EXPECT_EQ((*top)[0].worth, 2);
  EXPECT_EQ((*top)[1].worth, 1);
}

}  // namespace
}  // namespace tfembed
