#include "cc/core/step/gradient_entries.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tfembed {
namespace {

template <class Entry>
class GradientEntriesTest : public testing::Test {
 protected:
  // Ranks with repeats; bags tell the entries apart.
  static std::vector<Entry> Entries(const std::vector<uint64_t>& ranks) {
    std::vector<Entry> entries;
    for (size_t i = 0; i < ranks.size(); ++i) {
      entries.push_back(Entry(ranks[i], i, i));
    }
    return entries;
  }

  static void ExpectSorted(const std::vector<uint64_t>& ranks) {
    std::vector<Entry> entries = Entries(ranks), expected = entries;
    std::stable_sort(
        expected.begin(), expected.end(),
        [](const Entry& a, const Entry& b) { return a.rank() < b.rank(); });
    std::vector<Entry> spare(ranks.size());
    const Entry* sorted =
        SortByRank(entries.data(), spare.data(), ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      ASSERT_EQ(sorted[i].rank(), expected[i].rank()) << i;
      ASSERT_EQ(sorted[i].bag(), expected[i].bag()) << i;
    }
  }

  static std::vector<uint64_t> Random(int64_t n, uint64_t limit) {
    std::mt19937_64 random(n);
    std::vector<uint64_t> ranks(n);
    for (uint64_t& rank : ranks) {
      rank = limit == 0 ? random() : random() % limit;
    }
    return ranks;
  }
};

using EntryTypes = testing::Types<NarrowEntry, WideEntry>;
TYPED_TEST_SUITE(GradientEntriesTest, EntryTypes);

TYPED_TEST(GradientEntriesTest, AreSortedStablyWhateverTheRange) {
  for (const int64_t n : {0, 1, 2, 3, 1000, 20000}) {
    for (const int bits : {0, 1, 5, 11, 12, 19, 23, 32}) {
      this->ExpectSorted(this->Random(n, uint64_t{1} << bits));
    }
  }
}

TYPED_TEST(GradientEntriesTest, AreSortedWhereTheRanksCluster) {
  std::vector<uint64_t> ranks;
  for (uint64_t cluster = 0; cluster < 4; ++cluster) {
    for (const uint64_t rank : this->Random(500, 100)) {
      ranks.push_back(cluster << 30 | rank);
    }
  }
  this->ExpectSorted(ranks);
}

TEST(WideEntryTest, AreSortedByAll64Bits) {
  std::mt19937_64 random(1);
  std::vector<WideEntry> entries, spare(5000);
  std::vector<uint64_t> ranks;
  for (uint32_t i = 0; i < 5000; ++i) {
    // Half of them agree in the upper 40 bits.
    const uint64_t rank = i % 2 ? random() : random() % (1 << 24);
    ranks.push_back(rank);
    entries.push_back(WideEntry(rank, i, i));
  }
  std::sort(ranks.begin(), ranks.end());
  const WideEntry* sorted = SortByRank(entries.data(), spare.data(), 5000);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(sorted[i].rank(), ranks[i]);
}

TEST(WideEntryTest, KeepsBagAndOccurrence) {
  const WideEntry entry(~uint64_t{0}, 4294967295u, 4294967294u);
  EXPECT_EQ(entry.rank(), ~uint64_t{0});
  EXPECT_EQ(entry.bag(), 4294967295u);
  EXPECT_EQ(entry.occurrence(), 4294967294u);
}

}  // namespace
}  // namespace tfembed
