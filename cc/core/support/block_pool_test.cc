#include "cc/core/support/block_pool.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr size_t kMega = size_t{1} << 20;

TEST(BlockPool, GivesTheSameMemoryAgain) {
  BlockPool pool(100 * kMega);
  void* const first = pool.Take(5 * kMega);
  std::memset(first, 1, 5 * kMega);
  pool.Return(first);
  EXPECT_EQ(pool.Take(5 * kMega), first);
  EXPECT_EQ(pool.kept_bytes(), 0u);
  pool.Return(first);
  EXPECT_EQ(pool.kept_bytes(), 5 * kMega);
}

TEST(BlockPool, GivesMemoryThatNobodyElseHas) {
  BlockPool pool(100 * kMega);
  std::set<void*> taken;
  for (int i = 0; i < 10; ++i) {
    void* const data = pool.Take(kMega);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    EXPECT_TRUE(taken.insert(data).second);
  }
  for (void* data : taken) pool.Return(data);
  EXPECT_EQ(pool.kept_bytes(), 10 * kMega);
}

TEST(BlockPool, HasAsManyBytesAsAskedFor) {
  BlockPool pool(0);
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{65}, kMega - 1,
                       kMega + 1, 3 * kMega + 77}) {
    void* const data = pool.Take(bytes);
    ASSERT_NE(data, nullptr);
    std::memset(data, 3, bytes);
    pool.Return(data);
  }
  EXPECT_EQ(pool.Take(SIZE_MAX), nullptr);
  EXPECT_EQ(pool.Take(size_t{1} << 60), nullptr);
}

TEST(BlockPool, TakesSizesThatAreCloseForOne) {
  BlockPool pool(100 * kMega);
  void* const first = pool.Take(16 * kMega - 1);
  pool.Return(first);
  void* const second = pool.Take(15 * kMega + 1);
  EXPECT_EQ(second, first);
  EXPECT_NE(pool.Take(8 * kMega), first);
}

TEST(BlockPool, KeepsTheNewestUpToItsMost) {
  BlockPool pool(10 * kMega);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.Take(4 * kMega));
  for (void* block : blocks) pool.Return(block);
  EXPECT_EQ(pool.kept_bytes(), 8 * kMega);
  EXPECT_EQ(pool.Take(4 * kMega), blocks[3]);
  EXPECT_EQ(pool.Take(4 * kMega), blocks[2]);
  void* const large = pool.Take(11 * kMega);
  pool.Return(large);
  EXPECT_EQ(pool.kept_bytes(), 0u);
}

TEST(BlockPool, GivesBackWhatIsNoLongerTaken) {
  BlockPool pool(100 * kMega);
  void* const large = pool.Take(50 * kMega);
  pool.Return(large);
  for (int64_t i = 0; i <= BlockPool::kMostUnused; ++i) {
    EXPECT_GE(pool.kept_bytes(), 50 * kMega);
    pool.Return(pool.Take(kMega));
  }
  EXPECT_EQ(pool.kept_bytes(), kMega);
}

TEST(BlockPool, ServesSeveralThreads) {
  BlockPool pool(20 * kMega);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const size_t bytes = (1 + (i + t) % 3) * kMega;
        char* const data = static_cast<char*>(pool.Take(bytes));
        data[0] = data[bytes - 1] = static_cast<char>(t);
        std::this_thread::yield();
        wrong += data[0] != t || data[bytes - 1] != t;
        pool.Return(data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(pool.kept_bytes(), 20 * kMega);
}

}  // namespace
}  // namespace tfembed
