#include "cc/core/policies/worth_cut.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::ElementsAre;

std::vector<bool> Kept(const std::vector<double>& all, int64_t most) {
  WorthCut cut(most);
  int passes = 0;
  do {
    for (double worth : all) cut.Note(worth);
    ++passes;
  } while (!cut.EndPass());
  EXPECT_LE(passes, 6);
  std::vector<bool> kept;
  for (double worth : all) kept.push_back(cut.Keeps(worth));
  return kept;
}

// By sorting.
std::vector<bool> Expected(const std::vector<double>& all, int64_t most) {
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return all[a] < all[b]; });
  std::vector<bool> kept(all.size(), true);
  for (int64_t i = 0; i + most < static_cast<int64_t>(all.size()); ++i) {
    kept[order[i]] = false;
  }
  return kept;
}

TEST(WorthCut, KeepsTheLastOfEqualRows) {
  EXPECT_THAT(Kept({1, 1, 2, 1}, 2), ElementsAre(false, false, true, true));
}

TEST(WorthCut, KeepsAllWhereTheyFit) {
  EXPECT_THAT(Kept({3, -1}, 2), ElementsAre(true, true));
  EXPECT_THAT(Kept({3, -1}, 5), ElementsAre(true, true));
}

TEST(WorthCut, OrdersAllNumbers) {
  const double big = std::numeric_limits<double>::infinity();
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(Kept({-big, -1, -tiny, -0.0, 0.0, tiny, 1, big}, 4),
            Expected({-big, -1, -tiny, 0.0, 0.0, tiny, 1, big}, 4));
}

TEST(WorthCut, KeepsWhatSortingKeeps) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const int64_t n = 1 + random() % 3000;
    std::vector<double> all(n);
    for (double& worth : all) {
      // Few or many ties, below and above 0, of any size.
      if (round % 3 == 0) worth = -static_cast<double>(random() % 50);
      if (round % 3 == 1) worth = static_cast<double>(random());
      if (round % 3 == 2) worth = std::normal_distribution<>(0, 1e9)(random);
    }
    const int64_t most = 1 + random() % n;
    EXPECT_EQ(Kept(all, most), Expected(all, most)) << n << " " << most;
  }
}

}  // namespace
}  // namespace tfembed
