#include "cc/core/table/hash_index.h"

#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "cc/core/support/chunk_pool.h"
#include "cc/core/support/hash.h"
#include "cc/core/testing/huge_page_use.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kChunkBytes = ChunkPool::kChunkBytes;

uint32_t Find(const HashIndex& index, int64_t key) {
  return index.Find(HashKey(key), key);
}

void Insert(HashIndex* index, int64_t key, uint32_t row) {
  if (index->size() == index->capacity()) {
    ASSERT_TRUE(index->Reserve(index->size() + 1).ok());
  }
  index->Insert(HashKey(key), key, row);
}

TEST(HashIndex, FindsNothingWhenEmpty) {
  HashIndex index;
  EXPECT_EQ(Find(index, 0), HashIndex::kNoRow);
  EXPECT_EQ(index.Erase(HashKey(0), 0), HashIndex::kNoRow);
  EXPECT_EQ(index.capacity(), 0);
  EXPECT_EQ(index.bytes(), 0);
}

TEST(HashIndex, BucketsAreCacheLines) {
  EXPECT_EQ(sizeof(HashIndex::Bucket), 64u);
  EXPECT_EQ(alignof(HashIndex::Bucket), 64u);
}

// But that the last chunk of 1,024 buckets is used as a whole.
TEST(HashIndex, GrowsByHalfAndStaysBetween49And74PercentFull) {
  HashIndex index;
  int64_t bytes = 0;
  for (int64_t key = 0; key < 100000; ++key) {
    Insert(&index, key, static_cast<uint32_t>(key));
    if (key < 1000) {
      bytes = index.bytes();
      continue;
    }
    const int64_t chunk = index.bytes() < kChunkBytes ? 0 : kChunkBytes;
    const double places = index.bytes() / 64 * 5;
    ASSERT_LE(index.size() / places, 0.74) << key;
    ASSERT_GE(index.size() / (places - chunk / 64 * 5), 0.49) << key;
    ASSERT_LE(index.bytes(), bytes * 1.51 + chunk) << key;
    ASSERT_TRUE(chunk == 0 || index.bytes() % chunk == 0) << key;
    bytes = index.bytes();
  }
}

// 32 indexes, each smaller than a huge page.
TEST(HashIndex, IsOnHugePagesWithOthersAndGivesThemBack) {
  const auto pool = std::make_shared<ChunkPool>();
  const int64_t before = HugePageAskedKib();
  {
    std::array<HashIndex, 32> indexes;
    for (HashIndex& index : indexes) index.set_pool(pool);
    for (int64_t key = 0; key < 300000; ++key) {
      Insert(&indexes[key % 32], key, static_cast<uint32_t>(key));
    }
    int64_t bytes = 0;
    for (const HashIndex& index : indexes) bytes += index.bytes();
    const auto mapped = static_cast<int64_t>(pool->mapped_bytes());
    EXPECT_GE(mapped, bytes);
    EXPECT_LT(mapped, bytes + int64_t{kHugePageBytes});
    if (HasHugePages()) {
      EXPECT_GE(HugePageAskedKib() - before, bytes / 1024);
    }
    for (int64_t key = 0; key < 300000; ++key) {
      ASSERT_EQ(Find(indexes[key % 32], key), key);
    }
    for (size_t i = 0; i < indexes.size(); i += 2) indexes[i].Clear();
    for (int64_t key = 0; key < 300000; ++key) {
      ASSERT_EQ(Find(indexes[key % 32], key),
                key % 2 == 0 ? HashIndex::kNoRow : key);
    }
    for (int64_t key = 0; key < 300000; key += 2) {
      Insert(&indexes[key % 32], key, 5);
    }
    EXPECT_EQ(pool->mapped_bytes(), mapped);
  }
  EXPECT_EQ(pool->mapped_bytes(), 0u);
}

TEST(HashIndex, GivesBackWhatItWithdraws) {
  const auto pool = std::make_shared<ChunkPool>();
  HashIndex index;
  index.set_pool(pool);
  for (const int64_t size : {0, 100, 20000}) {
    for (int64_t key = index.size(); key < size; ++key) Insert(&index, key, 7);
    const int64_t capacity = index.capacity();
    const size_t mapped = pool->mapped_bytes();
    ASSERT_TRUE(index.Promise(1000000).ok());
    EXPECT_GE(pool->mapped_bytes(), 1000000u * 64 / 5);
    index.Withdraw();
    EXPECT_LE(pool->mapped_bytes(), mapped + kHugePageBytes);
    EXPECT_EQ(index.capacity(), capacity);
    EXPECT_EQ(index.promised_capacity(), capacity);
    for (int64_t key = 0; key < 20000; ++key) {
      ASSERT_EQ(Find(index, key), key < size ? 7u : HashIndex::kNoRow);
    }
  }
}

TEST(HashIndex, KeepsAPromiseLaterAndIsAsItWasUntilThen) {
  HashIndex index;
  int64_t known = 0;
  for (const int64_t keys : {3, 1000, 5000, 100000, 120000, 1500000}) {
    const int64_t capacity = index.capacity();
    ASSERT_TRUE(index.Promise(keys).ok());
    ASSERT_TRUE(index.Promise(keys / 2).ok());  // Less is there already.
    EXPECT_GE(index.promised_capacity(), keys);
    EXPECT_EQ(index.capacity(), capacity);
    for (; known < capacity; ++known) Insert(&index, known, known % 7);
    ASSERT_EQ(Find(index, known), HashIndex::kNoRow);
    for (int64_t key = 0; key < known; ++key) {
      ASSERT_EQ(Find(index, key), key % 7);
    }
    index.Grow();
    EXPECT_EQ(index.capacity(), index.promised_capacity());
    for (; known < keys; ++known) Insert(&index, known, known % 7);
    for (int64_t key = 0; key < known; ++key) {
      ASSERT_EQ(Find(index, key), key % 7);
    }
    EXPECT_EQ(index.size(), known);
  }
}

TEST(HashIndex, ClearsWhatItHasPromised) {
  for (const bool for_keys : {false, true}) {
    HashIndex index;
    for (int64_t key = 0; key < 1000; ++key) Insert(&index, key, 1);
    ASSERT_TRUE(index.Promise(100000).ok());
    if (for_keys) {
      ASSERT_TRUE(index.ClearFor(1000).ok());
    } else {
      index.Clear();
    }
    EXPECT_EQ(index.capacity(), index.promised_capacity());
    EXPECT_LT(index.capacity(), 100000);
    for (int64_t key = 0; key < 1000; ++key) {
      ASSERT_EQ(Find(index, key), HashIndex::kNoRow);
      Insert(&index, key, 2);
    }
    EXPECT_EQ(index.size(), 1000);
  }
}

// Every key is where a search finds it at any size, with removals between, so
// that buckets have overflowed in every way when the index grows.
TEST(HashIndex, GrowsInPlaceWithoutLosingAKey) {
  for (int phase = 0; phase < 4; ++phase) {
    HashIndex index;
    index.set_growth_phase(phase / 4.0);
    std::mt19937_64 random(phase);
    std::unordered_map<int64_t, uint32_t> model;
    int64_t capacity = 0;
    for (int64_t i = 0; i < 60000; ++i) {
      const auto key = static_cast<int64_t>(random());
      Insert(&index, key, static_cast<uint32_t>(i));
      model[key] = static_cast<uint32_t>(i);
      if (i % 5 == 0) {
        const auto [gone, row] = *model.begin();
        ASSERT_EQ(index.Erase(HashKey(gone), gone), row);
        model.erase(gone);
      }
      if (index.capacity() == capacity) continue;
      capacity = index.capacity();
      ASSERT_EQ(index.size(), static_cast<int64_t>(model.size()));
      for (const auto& [known, row] : model) {
        ASSERT_EQ(Find(index, known), row) << capacity;
      }
      ASSERT_LT(index.CountProbes().longest, 30);
    }
  }
}

// Keys of the highest and of the lowest hashes: the last bucket's next is the
// first one.
TEST(HashIndex, GrowsWithKeysAtItsEnds) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; keys.size() < 400; ++key) {
    const uint64_t place = HashKey(key) >> 44;  // With salt 1.
    if (place < 3000 || place >= (1 << 20) - 3000) keys.push_back(key);
  }
  HashIndex index(/*salt=*/1);
  for (size_t i = 0; i < keys.size(); ++i) {
    Insert(&index, keys[i], static_cast<uint32_t>(i));
    for (size_t j = 0; j <= i; ++j) ASSERT_EQ(Find(index, keys[j]), j) << i;
  }
}

TEST(HashIndex, TakesKeysInTheOrderOfAnotherOne) {
  HashIndex from;
  std::mt19937_64 random(3);
  for (int i = 0; i < 100000; ++i) {
    Insert(&from, static_cast<int64_t>(random()), static_cast<uint32_t>(i));
  }
  HashIndex to;
  from.ForEach(0, from.num_buckets(),
               [&to](int64_t key, uint32_t row) { Insert(&to, key, row); });
  EXPECT_LT(to.CountProbes().longest, 30);
  EXPECT_LT(to.CountProbes().total, 1.3 * to.size());
}

TEST(HashIndex, OfAnotherPhaseGrowsAtAnotherSize) {
  std::set<int64_t> capacities;
  for (int i = 0; i < 16; ++i) {
    HashIndex index;
    index.set_growth_phase(i / 16.0);
    ASSERT_TRUE(index.Reserve(1000000).ok());
    capacities.insert(index.capacity());
  }
  EXPECT_EQ(capacities.size(), 16u);
  EXPECT_LE(*capacities.rbegin(), 1510000);
}

TEST(HashIndex, StopsGrowingWhereItsUsualKeysFit) {
  HashIndex index;
  index.set_usual_keys(2000);
  for (int64_t key = 0; key < 2000; ++key) Insert(&index, key, 7);
  EXPECT_GE(index.capacity(), 2000);
  EXPECT_LT(index.capacity(), 2004);
  Insert(&index, 2000, 7);
  for (int64_t key = 2001; key < 2010; ++key) Insert(&index, key, 7);
  EXPECT_GE(index.capacity(), 2400);  // It grows on as others do.
}

// Up to two chunks it has a block for these keys alone; then whole chunks.
TEST(HashIndex, HasNoPartOfAChunkTooManyForItsUsualKeys) {
  for (const int64_t usual : {3700, 4000, 5000, 7500, 8000, 60000}) {
    HashIndex index;
    index.set_growth_phase(0.5);
    index.set_usual_keys(usual);
    std::unordered_map<int64_t, uint32_t> model;
    for (int64_t i = 0; i < usual + 10; ++i) {
      const int64_t key = i * 7919;
      Insert(&index, key, static_cast<uint32_t>(i));
      model[key] = static_cast<uint32_t>(i);
      if (i + 1 != usual) continue;
      EXPECT_LE(index.capacity(), usual + (usual < 7600 ? 4 : 3789));
      for (const auto& [known, row] : model) {
        ASSERT_EQ(Find(index, known), row) << usual;
      }
    }
    for (const auto& [known, row] : model) {
      ASSERT_EQ(Find(index, known), row) << usual;
    }
    EXPECT_LT(index.CountProbes().longest, 30);
    ASSERT_TRUE(index.ClearFor(usual).ok());
    EXPECT_EQ(Find(index, 0), HashIndex::kNoRow);
    Insert(&index, 5, 1);
    EXPECT_EQ(Find(index, 5), 1u);
  }
}

TEST(HashIndex, FindOrInsertAsksForARowOnlyForNewKeys) {
  HashIndex index;
  ASSERT_TRUE(index.Reserve(2).ok());
  uint32_t next = 40;
  const auto new_row = [&next] { return next++; };
  EXPECT_EQ(index.FindOrInsert(HashKey(1), 1, new_row), 40u);
  EXPECT_EQ(index.FindOrInsert(HashKey(1), 1, new_row), 40u);
  EXPECT_EQ(index.FindOrInsert(HashKey(2), 2, new_row), 41u);
  EXPECT_EQ(index.size(), 2);
}

TEST(HashIndex, AgreesWithAnUnorderedMapUnderChurnInTheSameMemory) {
  constexpr int64_t kKeys = 3000;
  HashIndex index;
  ASSERT_TRUE(index.Reserve(kKeys).ok());
  const int64_t bytes = index.bytes();
  std::unordered_map<int64_t, uint32_t> expected;
  std::mt19937 random(1);
  for (int step = 0; step < 300000; ++step) {
    const int64_t key = static_cast<int64_t>(random() % (2 * kKeys)) << 32;
    if (expected.count(key) > 0) {
      ASSERT_EQ(index.Erase(HashKey(key), key), expected[key]);
      expected.erase(key);
    } else {
      ASSERT_EQ(Find(index, key), HashIndex::kNoRow);
      if (index.size() == index.capacity()) continue;
      index.Insert(HashKey(key), key, step);
      expected[key] = step;
    }
  }
  for (const auto& [key, row] : expected) ASSERT_EQ(Find(index, key), row);
  EXPECT_EQ(index.size(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(index.bytes(), bytes);
}

// Keys that all belong into the first of `buckets` where the salt is 1.
std::vector<int64_t> CollidingKeys(int64_t n, uint32_t buckets) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; static_cast<int64_t>(keys.size()) < n; ++key) {
    if (((HashKey(key) >> 32) * buckets) >> 32 == 0) keys.push_back(key);
  }
  return keys;
}

TEST(HashIndex, FindsKeysThatOverflowMoreBucketsThanItCounts) {
  HashIndex index(/*salt=*/1);
  ASSERT_TRUE(index.Reserve(2000).ok());
  const std::vector<int64_t> keys = CollidingKeys(1000, index.num_buckets());
  for (size_t i = 0; i < keys.size(); ++i) Insert(&index, keys[i], i);
  for (size_t i = 0; i < keys.size(); ++i) ASSERT_EQ(Find(index, keys[i]), i);
  for (size_t i = 0; i < 900; ++i) {
    ASSERT_EQ(index.Erase(HashKey(keys[i]), keys[i]), i);
  }
  for (size_t i = 0; i < 900; ++i) {
    ASSERT_EQ(Find(index, keys[i]), HashIndex::kNoRow);
  }
  for (size_t i = 900; i < 1000; ++i) ASSERT_EQ(Find(index, keys[i]), i);
}

TEST(HashIndex, VisitsEveryKeyInTheOrderOfItsBuckets) {
  HashIndex index;
  for (int64_t key = 0; key < 1000; ++key) Insert(&index, key, key + 5);
  std::set<int64_t> seen;
  for (int64_t b = 0; b < index.num_buckets(); ++b) {
    index.ForEach(b, b + 1, [&](int64_t key, uint32_t row) {
      EXPECT_EQ(row, key + 5);
      EXPECT_TRUE(seen.insert(key).second);
    });
  }
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(HashIndex, ClearGivesTheMemoryBackAndTheIndexWorksOn) {
  HashIndex index;
  for (int64_t key = 0; key < 1000; ++key) Insert(&index, key, 1);
  index.Clear();
  EXPECT_EQ(index.bytes(), 0);
  EXPECT_EQ(Find(index, 3), HashIndex::kNoRow);
  Insert(&index, 3, 9);
  EXPECT_EQ(Find(index, 3), 9u);
}

TEST(HashIndex, ClearForUsesMemoryOfTheRightSizeAgain) {
  HashIndex index;
  for (int64_t key = 0; key < 100000; ++key) Insert(&index, key, 1);
  const int64_t bytes = index.bytes(), buckets = index.num_buckets();
  for (const int64_t keys : {100000, 100000, 1000, 3, 0, 100000}) {
    ASSERT_TRUE(index.ClearFor(keys).ok());
    EXPECT_EQ(index.size(), 0);
    EXPECT_GE(index.capacity(), keys);
    index.ForEach(0, index.num_buckets(),
                  [](int64_t, uint32_t) { FAIL() << "a key is left"; });
    for (int64_t key = 0; key < keys; ++key) {
      ASSERT_EQ(Find(index, key), HashIndex::kNoRow);
      Insert(&index, key, key % 7);
    }
    for (int64_t key = 0; key < keys; ++key) {
      ASSERT_EQ(Find(index, key), key % 7);
    }
    if (keys < 100000) continue;
    EXPECT_EQ(index.bytes(), bytes);
    EXPECT_EQ(index.num_buckets(), buckets);
  }
}

TEST(HashIndex, IsEmptyWhereClearForFindsNoMemory) {
  HashIndex index;
  Insert(&index, 3, 9);
  EXPECT_EQ(index.ClearFor(int64_t{1} << 40).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(index.size(), 0);
  EXPECT_EQ(index.bytes(), 0);
  EXPECT_EQ(Find(index, 3), HashIndex::kNoRow);
}

TEST(HashIndex, RefusesWhatTheSystemCannotGiveAndStaysAsItWas) {
  HashIndex index;
  Insert(&index, 3, 9);
  const int64_t capacity = index.capacity();
  for (const int64_t keys : {int64_t{1} << 35, int64_t{1} << 40}) {
    EXPECT_EQ(index.Promise(keys).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(index.Reserve(keys).code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(index.capacity(), capacity);
  EXPECT_EQ(index.promised_capacity(), capacity);
  EXPECT_EQ(Find(index, 3), 9u);
}

}  // namespace
}  // namespace tfembed
