#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "cc/core/simd/dispatch.h"
#include "cc/core/support/hash.h"
#include "cc/core/table/row_store.h"
#include "cc/core/table/table_stripe.h"
#include "cc/core/testing/kernels_test_base.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

// Widths of rows that are looked for by each of the loops.
constexpr int64_t kWidths[] = {1, 3, 8, 16, 32, 33, 64, 100};
constexpr int64_t kKeys = 200000;

// Keys 0 to kKeys - 1, times 7, in indexes that grew key by key: some lie past
// their home, and the indexes have several chunks.
class FindTest : public KernelsTestBase<const char*> {
 protected:
  void Fill(int64_t width) {
    for (TableStripe& stripe : *stripes_) stripe.Clear();
    store_ = RowStore::Create(width).value();
    ASSERT_TRUE(store_->Promise(kKeys).ok());
    for (int64_t key = 0; key < 7 * kKeys; key += 7) {
      const uint64_t hash = HashKey(key);
      TableStripe& stripe = (*stripes_)[StripeOf(hash)];
      ASSERT_TRUE(stripe.ReserveIndex(stripe.index().size() + 1).ok());
      bool inserted;
      stripe.FindOrInsert(hash, key, store_.get(), &inserted);
      ASSERT_TRUE(inserted);
    }
    ASSERT_GT((*stripes_)[0].index().num_buckets(), kChunkBuckets);
  }

  const float* RowOf(int64_t key) const {
    const uint64_t hash = HashKey(key);
    const uint32_t row = (*stripes_)[StripeOf(hash)].Find(hash, key);
    return row == HashIndex::kNoRow ? nullptr : store_->Row(row);
  }

  const HashBucket* HomeOf(int64_t key) const {
    const uint64_t hash = HashKey(key);
    return (*stripes_)[StripeOf(hash)].index().Home(hash);
  }

  // By homes that are known, and without the indexes.
  void ExpectTheSameAtHomes(const FindBlock& found, int64_t num_unsettled) {
    std::vector<const float*> rows(found.n, &nowhere_);
    FindBlock block;
    block.keys = found.keys;
    block.n = found.n;
    block.addresses = found.addresses;
    block.floats_to_fetch = found.floats_to_fetch;
    block.rows = rows.data();
    std::copy_n(found.homes, found.n, block.homes);
    ASSERT_EQ(ActiveKernels().find_at_homes(&block), num_unsettled);
    std::vector<const float*> expected(found.rows, found.rows + found.n);
    for (int64_t j = 0; j < num_unsettled; ++j) {
      ASSERT_EQ(block.unsettled[j], found.unsettled[j]);
      expected[found.unsettled[j]] = &nowhere_;
    }
    EXPECT_EQ(rows, expected);
  }

  const float nowhere_ = 0;
  const std::unique_ptr<TableStripes> stripes_ =
      std::make_unique<TableStripes>();
  std::unique_ptr<RowStore> store_;
};

TEST_P(FindTest, KeysAreFoundAtHomeAndTheOthersListed) {
  for (const int64_t width : kWidths) {
    SCOPED_TRACE(width);
    Fill(width);
    const StripeIndexes indexes = stripes_->Indexes();
    const int64_t next_keys[] = {0, 1, 7, 14, -1};
    int64_t num_past = 0;
    for (int64_t begin = 0; begin < 7 * kKeys; begin += 7 * 60) {
      // Every second key is there; blocks have 1, or 120 to 128 keys.
      std::vector<int64_t> keys;
      const int64_t n = begin == 0 ? 1 : 120 + begin / 420 % 9;
      for (int64_t i = 0; i < n; ++i) {
        keys.push_back(begin + i / 2 * 7 + i % 2);
      }
      FindBlock block, next_block;
      SetKeys(*store_, indexes, keys.data(), keys.size(), &block);
      std::vector<const float*> rows(keys.size());
      block.rows = rows.data();
      block.floats_to_fetch = width;
      SetKeys(*store_, indexes, next_keys, std::min<int64_t>(n, 5),
              &next_block);
      block.next = &next_block;
      ActiveKernels().ask_for_homes(&block);
      const int64_t num_unsettled = ActiveKernels().find_at_homes(&block);
      for (int64_t i = 0; i < next_block.n; ++i) {
        ASSERT_EQ(next_block.homes[i], HomeOf(next_keys[i]));
      }
      int64_t next = 0;
      for (size_t i = 0; i < keys.size(); ++i) {
        ASSERT_EQ(block.homes[i], HomeOf(keys[i]));
        const bool is_home =
            HashIndex::FindIn(*block.homes[i], keys[i]) != HashIndex::kNoRow;
        if (is_home) {
          ASSERT_EQ(rows[i], RowOf(keys[i]));
        } else {
          ASSERT_LT(next, num_unsettled);
          ASSERT_EQ(block.unsettled[next++], static_cast<int32_t>(i));
          num_past += RowOf(keys[i]) != nullptr;
        }
      }
      ASSERT_EQ(next, num_unsettled);
      ExpectTheSameAtHomes(block, num_unsettled);
    }
    EXPECT_GT(num_past, 0);
  }
}

TEST_P(FindTest, FindRowsLooksPastTheHomesToo) {
  for (const int64_t width : kWidths) {
    SCOPED_TRACE(width);
    Fill(width);
    const StripeIndexes indexes = stripes_->Indexes();
    for (int64_t begin = 0; begin < 7 * kKeys; begin += 97) {
      int64_t keys[97];
      const float* rows[97];
      int64_t there = 0;
      for (int64_t i = 0; i < 97; ++i) {
        keys[i] = begin + i;
        there += RowOf(keys[i]) != nullptr;
      }
      ASSERT_EQ(FindRows(*stripes_, *store_, indexes, keys, 97, width, rows),
                there);
      for (int64_t i = 0; i < 97; ++i) ASSERT_EQ(rows[i], RowOf(keys[i]));
    }
  }
}

TEST_P(FindTest, EmptyIndexesHaveNoKeys) {
  store_ = RowStore::Create(8).value();
  const int64_t keys[] = {0, -1, std::numeric_limits<int64_t>::min(), 42};
  const float* rows[4];
  EXPECT_EQ(FindRows(*stripes_, *store_, stripes_->Indexes(), keys, 4, 8, rows),
            0);
  for (const float* row : rows) EXPECT_EQ(row, nullptr);
}

TEST_P(FindTest, KeysAreDealtInOrderToGroupsOfOneSize) {
  for (const int num_groups : {1, 2, 3, 7, 8}) {
    for (const int64_t n : {0, 1, 15, 16, 17, 2048}) {
      std::vector<int64_t> keys(n);
      std::iota(keys.begin(), keys.end(), -n / 2);
      DealBlock block;
      block.keys = keys.data();
      block.n = n;
      block.num_groups = num_groups;
      block.first_position = 70'000;
      ActiveKernels().deal_keys(&block);
      std::vector<uint32_t> positions[DealBlock::kMostGroups];
      for (int64_t i = 0; i < n; ++i) {
        positions[(HashKey(keys[i]) >> 32) * num_groups >> 32].push_back(
            70'000 + i);
      }
      for (int g = 0; g < num_groups; ++g) {
        EXPECT_EQ(std::vector<uint32_t>(block.positions[g],
                                        block.positions[g] + block.sizes[g]),
                  positions[g]);
        if (n == 2048) {
          EXPECT_NEAR(block.sizes[g], n / num_groups, 200);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, FindTest,
                         testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tfembed
