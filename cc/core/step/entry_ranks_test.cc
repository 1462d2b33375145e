#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "cc/core/step/gradient_entries.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/map_table.h"
#include "cc/core/testing/test_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();

class EntryRanksTest : public testing::Test {
 protected:
  static BagGradients Feature(const std::vector<int64_t>& ids) {
    BagGradients feature;
    feature.bags.ids = ids.data();
    feature.bags.num_bags = ids.size();
    return feature;
  }

  static EntryLayout LayOut(const RowSink* sink,
                            const std::vector<int64_t>& ids) {
    const BagGradients feature = Feature(ids);
    return LayOutEntries({&feature, 1}, sink, RangeOfIds({&feature, 1}));
  }

  const std::unique_ptr<EmbeddingTable> table_ = MakeTestTable(1);
  const std::unique_ptr<RowSink> sink_ = table_->Write();
};

TEST_F(EntryRanksTest, RangeIsThatOfTheIdsOfAllFeatures) {
  const std::vector<int64_t> ids = {5, -7, 3}, others = {kGreatest, 4}, none;
  const BagGradients features[] = {Feature(none), Feature(ids),
                                   Feature(others)};
  EXPECT_EQ(RangeOfIds(features).least, -7);
  EXPECT_EQ(RangeOfIds(features).greatest, kGreatest);
  const IdRange empty = RangeOfIds({features, 1});
  EXPECT_GT(empty.least, empty.greatest);
}

TEST_F(EntryRanksTest, TellPartsAndIdsWhereThereAreFewBitsOfBoth) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 1000; ++i) ids.push_back(i * 7919 % 5000 - 2500);
  MapTable map(1, {});
  for (const RowSink* sink : {static_cast<RowSink*>(&map), sink_.get()}) {
    const EntryLayout layout = LayOut(sink, ids);
    ASSERT_EQ(layout.kind, RankKind::kParts);
    EXPECT_TRUE(layout.is_narrow());
    EntryRanks<RankKind::kParts> ranks(layout, sink, ids.data(), 3, 1000);
    const uint64_t mask = (uint64_t{1} << layout.id_bits) - 1;
    for (int64_t i = 3; i < 1000; ++i) {
      const uint64_t rank = ranks(i);
      EXPECT_LE(rank, std::numeric_limits<uint32_t>::max());
      EXPECT_EQ(static_cast<int>(rank >> layout.part_shift),
                sink->PartOf(sink->Rank(ids[i])));
      EXPECT_EQ(static_cast<int64_t>(rank & mask) + layout.base, ids[i]);
    }
  }
}

TEST_F(EntryRanksTest, AreThoseOfTheSinkWhereIdsAreFarApart) {
  // A hash table has 5 bits of parts.
  EXPECT_EQ(LayOut(sink_.get(), {-9, (1 << 27) - 10}).kind, RankKind::kParts);
  for (const std::vector<int64_t>& ids :
       {std::vector<int64_t>{-9, (1 << 27) - 9},
        std::vector<int64_t>{kLeast, 0, kGreatest}}) {
    const EntryLayout layout = LayOut(sink_.get(), ids);
    ASSERT_EQ(layout.kind, RankKind::kHashes);
    EXPECT_FALSE(layout.is_narrow());
    EntryRanks<RankKind::kHashes> ranks(layout, sink_.get(), ids.data(), 0,
                                        ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(ranks(i), sink_->Rank(ids[i]));
    }
  }
}

TEST_F(EntryRanksTest, AreThoseOfTheSinkWhereIdsHaveWeights) {
  const std::vector<int64_t> ids = {1, 2};
  const float weights[] = {1, 2};
  BagGradients feature = Feature(ids);
  feature.bags.weights = weights;
  const EntryLayout layout =
      LayOutEntries({&feature, 1}, sink_.get(), RangeOfIds({&feature, 1}));
  EXPECT_EQ(layout.kind, RankKind::kHashes);
}

TEST_F(EntryRanksTest, AreIdsAboveTheLeastWithoutASink) {
  const std::vector<int64_t> ids = {kLeast, kGreatest, 0};
  const EntryLayout layout = LayOut(nullptr, ids);
  ASSERT_EQ(layout.kind, RankKind::kIds);
  EXPECT_FALSE(layout.is_narrow());
  EXPECT_LT(layout.max_offset >> layout.bucket_shift, 256u);
  EntryRanks<RankKind::kIds> ranks(layout, nullptr, ids.data(), 0, 3);
  EXPECT_EQ(ranks(0), 0u);
  EXPECT_EQ(ranks(1), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ranks(2), uint64_t{1} << 63);
}

}  // namespace
}  // namespace tfembed
