#include "cc/core/support/chunk_pool.h"

#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "cc/core/testing/huge_page_use.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr size_t kBytes = ChunkPool::kChunkBytes;
constexpr size_t kPageChunks = kHugePageBytes / kBytes;

bool IsZero(const char* chunk) {
  for (size_t i = 0; i < kBytes; ++i) {
    if (chunk[i] != 0) return false;
  }
  return true;
}

TEST(ChunkPool, GivesZerosAlsoWhereAChunkWasUsed) {
  ChunkPool pool;
  char* const kept = pool.Take().value();
  for (int i = 0; i < 3; ++i) {
    char* const chunk = pool.Take().value();
    ASSERT_NE(chunk, kept);
    ASSERT_TRUE(IsZero(chunk)) << i;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk) % kBytes, 0u);
    std::memset(chunk, 7, kBytes);
    pool.Return(chunk, false);
  }
  pool.Return(kept, false);
}

TEST(ChunkPool, LeavesWhatNobodyWroteUnwritten) {
  ChunkPool pool;
  char* const chunk = pool.Take().value();
  char* const kept = pool.Take().value();
  chunk[5] = 3;  // Against the rule, to see that it is not cleared.
  pool.Return(chunk, true);
  ASSERT_EQ(pool.Take().value(), chunk);
  EXPECT_EQ(chunk[5], 3);
  pool.Return(chunk, false);
  ASSERT_EQ(pool.Take().value(), chunk);
  EXPECT_EQ(chunk[5], 0);
  pool.Return(chunk, true);
  pool.Return(kept, true);
}

TEST(ChunkPool, GivesAPageBackWhenAllOfItIsFree) {
  ChunkPool pool;
  EXPECT_EQ(pool.mapped_bytes(), 0u);
  std::vector<char*> chunks;
  for (size_t i = 0; i < 2 * kPageChunks; ++i) {
    chunks.push_back(pool.Take().value());
  }
  EXPECT_EQ(pool.mapped_bytes(), 2 * kHugePageBytes);
  EXPECT_EQ(std::set<char*>(chunks.begin(), chunks.end()).size(),
            chunks.size());
  for (size_t i = 1; i < chunks.size(); i += 2) pool.Return(chunks[i], false);
  EXPECT_EQ(pool.mapped_bytes(), 2 * kHugePageBytes);
  // The free halves of the two pages are used before there is a third one.
  for (size_t i = 1; i < chunks.size(); i += 2) chunks[i] = pool.Take().value();
  EXPECT_EQ(pool.mapped_bytes(), 2 * kHugePageBytes);
  EXPECT_EQ(std::set<char*>(chunks.begin(), chunks.end()).size(),
            chunks.size());
  for (char* chunk : chunks) pool.Return(chunk, false);
  EXPECT_EQ(pool.mapped_bytes(), 0u);
}

TEST(ChunkPool, HasTheChunksOfAllOwnersOnHugePages) {
  ChunkPool pool;
  const int64_t before = HugePageAskedKib();
  std::vector<char*> chunks;
  for (size_t i = 0; i < 4 * kPageChunks; ++i) {
    chunks.push_back(pool.Take().value());
    std::memset(chunks.back(), 1, kBytes);
  }
  if (HasHugePages()) {
    EXPECT_GE(HugePageAskedKib() - before, int64_t{4 * kHugePageBytes / 1024});
  }
  for (char* chunk : chunks) pool.Return(chunk, false);
}

TEST(ChunkPool, IsThreadSafe) {
  ChunkPool pool;
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(t);
      std::vector<char*> chunks;
      for (int step = 0; step < 2000; ++step) {
        if (chunks.size() < 20 && random() % 2 == 0) {
          char* const chunk = pool.Take().value();
          ASSERT_EQ(chunk[0], 0);
          ASSERT_EQ(chunk[kBytes - 1], 0);
          chunk[0] = chunk[kBytes - 1] = static_cast<char>(t);
          chunks.push_back(chunk);
        } else if (!chunks.empty()) {
          ASSERT_EQ(chunks.back()[0], t);
          ASSERT_EQ(chunks.back()[kBytes - 1], t);
          pool.Return(chunks.back(), false);
          chunks.pop_back();
        }
      }
      for (char* chunk : chunks) pool.Return(chunk, false);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.mapped_bytes(), 0u);
}

}  // namespace
}  // namespace tfembed
