// Many threads on one table, and no memory for a batch.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/testing/address_limit.h"
#include "cc/core/testing/gradient_features.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 17;
constexpr int64_t kKeys = 3000;

// Whether all floats of each row are the same: no row was seen half written.
bool RowsAreWhole(const std::vector<float>& rows) {
  for (size_t i = 0; i < rows.size(); i += kDim) {
    for (int64_t d = 1; d < kDim; ++d) {
      if (rows[i + d] != rows[i]) return false;
    }
  }
  return true;
}

std::vector<int64_t> Keys(int64_t begin, int64_t n) {
  std::vector<int64_t> keys(n);
  for (int64_t i = 0; i < n; ++i) keys[i] = (begin + i * 7) % kKeys;
  return keys;
}

TEST(Threads, ReadersSeeWholeRowsWhileWritersInsertChangeAndRemove) {
  auto table = MakeTestTable(kDim);
  std::atomic<bool> stop{false};
  std::atomic<int64_t> torn{0};
  std::vector<std::thread> threads;
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&, reader] {
      ThreadExecutor executor(2);
      for (int64_t i = 0; !stop; ++i) {
        const auto keys = Keys(i + reader * 1000, 1500);
        if (!RowsAreWhole(LookUp(*table, keys, &executor))) ++torn;
        std::this_thread::yield();
      }
    });
  }
  threads.emplace_back([&] {
    ThreadExecutor executor(2);
    while (!stop) {
      const absl::Status status = table->Freeze()->Visit(
          100,
          [&](absl::Span<const int64_t> keys, const float* rows) {
            if (!RowsAreWhole({rows, rows + keys.size() * kDim})) ++torn;
            return absl::OkStatus();
          },
          &executor);
      if (!status.ok()) ++torn;
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&, writer] {
      ThreadExecutor executor(2);
      for (int64_t i = 0; i < 100; ++i) {
        const auto keys = Keys(i * 13 + writer, 1200);
        const std::vector<float> rows(keys.size() * kDim, i + writer * 1000.0f);
        const std::unique_ptr<bool[]> exists(new bool[keys.size()]());
        std::memset(exists.get(), 1, keys.size());
        if (!table->Upsert(keys, rows.data(), &executor).ok() ||
            !table->Accum(keys, rows.data(), nullptr, exists.get(), &executor)
                 .ok()) {
          ++torn;
        }
        table->Remove(Keys(i * 29, 500), &executor);
        if (i % 40 == 39) table->Clear();
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
}

TEST(Threads, AddUpWhatManyWritersAccumulate) {
  auto table = MakeTestTable(kDim);
  const auto keys = Keys(0, kKeys);
  const std::vector<float> ones(keys.size() * kDim, 1.0f);
  ASSERT_TRUE(table->Upsert(keys, ones.data(), nullptr).ok());
  const std::unique_ptr<bool[]> exists(new bool[keys.size()]());
  std::memset(exists.get(), 1, keys.size());
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&] {
      ThreadExecutor executor(2);
      for (int i = 0; i < 25; ++i) {
        EXPECT_TRUE(
            table->Accum(keys, ones.data(), nullptr, exists.get(), &executor)
                .ok());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(LookUp(*table, keys), std::vector<float>(ones.size(), 101.0f));
}

TEST(Threads, SetSlotsWhileOthersReadAndWrite) {
  auto table = MakeTestTable(kDim);
  std::atomic<bool> stop{false};
  std::atomic<int64_t> torn{0};
  std::thread reader([&] {
    while (!stop) {
      if (!RowsAreWhole(LookUp(*table, Keys(0, 500)))) ++torn;
      std::this_thread::yield();
    }
  });
  std::thread writer([&] {
    for (int64_t i = 0; i < 200; ++i) {
      const auto keys = Keys(i, 200);
      const std::vector<float> rows(keys.size() * kDim, i + 1.0f);
      if (!table->Upsert(keys, rows.data(), nullptr).ok()) ++torn;
    }
  });
  EXPECT_TRUE(table->SetSlots({"adagrad", {"accumulators"}, {0.1f}}).ok());
  EXPECT_TRUE(table->DropSlots().ok());
  EXPECT_TRUE(table->SetSlots({"adagrad", {"accumulators"}, {0.1f}}).ok());
  writer.join();
  stop = true;
  reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(table->full_width(), 2 * kDim);
}

// A step's room must outlive what others do between its making and its use.
TEST(Threads, TrainWhileOthersClearInsertAndRemove) {
  EmbeddingTable::Options options;
  options.dim = kDim;
  options.admission = "count seen=2";
  auto made = EmbeddingTable::Create(
      options, *InitialRows::Create("constant", {0.0f}, /*seed=*/1, kDim));
  ASSERT_TRUE(made.ok()) << made.status();
  EmbeddingTable* const table = made->get();
  const auto rule = UpdateRule::Parse("sgd").value();
  GradientFeatures features(kDim);
  RandomBagsOptions bags;
  bags.num_bags = 500;
  bags.num_rows = kKeys;
  features.Add(bags, 1);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int step = 0; step < 150; ++step) {
        const auto sink = table->Write();
        TableUpdate update;
        update.sink = sink.get();
        update.rule = rule.get();
        update.features = features.features();
        EXPECT_TRUE(
            GroupedUpdate({&update, 1}, NonFinite::kAllow, nullptr).ok());
      }
    });
  }
  const auto keys = Keys(0, kKeys);
  const std::vector<float> ones(kKeys * kDim, 1.0f);
  std::thread others([&] {
    while (!stop) {
      table->Clear();
      EXPECT_TRUE(table->Upsert(keys, ones.data(), nullptr).ok());
      table->Remove(keys, nullptr);
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  others.join();
  EXPECT_LE(table->size(), kKeys);
  const auto found = LookUp(*table, keys);
  EXPECT_EQ(found.size(), keys.size() * kDim);
}

#if TFEMBED_CAN_LIMIT_ADDRESSES

TEST(NoMemory, LeavesTheTableAsItWas) {
  auto table = MakeTestTable(kDim);
  const auto keys = Keys(0, kKeys);
  const std::vector<float> ones(keys.size() * kDim, 1.0f);
  ASSERT_TRUE(table->Upsert(keys, ones.data(), nullptr).ok());
  std::vector<int64_t> more(2000000);
  for (size_t i = 0; i < more.size(); ++i) more[i] = i + 1;
  const std::vector<float> twos(more.size() * kDim, 2.0f);
  {
    const AddressLimit limit(int64_t{60} << 20);
    EXPECT_EQ(table->Upsert(more, twos.data(), nullptr).code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(table->size(), kKeys);
  EXPECT_EQ(LookUp(*table, keys), ones);
  ASSERT_TRUE(table->Upsert(more, twos.data(), nullptr).ok());
  EXPECT_EQ(table->size(), 2000001);
}

TEST(NoMemory, ForSlotsLeavesTheTableAsItWas) {
  auto table = MakeTestTable(kDim);
  const auto keys = Keys(0, kKeys);
  const std::vector<float> ones(keys.size() * kDim, 1.0f);
  ASSERT_TRUE(table->Upsert(keys, ones.data(), nullptr).ok());
  {
    const AddressLimit limit(int64_t{20} << 20);
    EXPECT_EQ(table->SetSlots({"adagrad", {"accumulators"}, {0.1f}}).code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(table->full_width(), kDim);
  EXPECT_EQ(LookUp(*table, keys), ones);
}

#endif

}  // namespace
}  // namespace tfembed
