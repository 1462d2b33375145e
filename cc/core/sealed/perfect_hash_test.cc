#include "cc/core/sealed/perfect_hash.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "cc/core/support/hash.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

// The sorted hashes of keys `step` apart that lie in a region of `regions`.
std::vector<uint64_t> Hashes(int64_t count, int64_t step, int64_t regions,
                             int64_t region) {
  std::vector<uint64_t> hashes;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t hash = HashKey(i * step);
    if (regions == 1 ||
        static_cast<int64_t>((hash >> 32) * regions >> 32) == region) {
      hashes.push_back(hash);
    }
  }
  std::sort(hashes.begin(), hashes.end());
  return hashes;
}

// The place of a hash, as the page of the format has it.
uint64_t Place(const PerfectHashSizes& sizes, uint64_t hash, uint64_t pilot) {
  const uint64_t spread =
      ((hash ^ (pilot * 0x9e3779b97f4a7c15)) * 0xd6e8feb86659fd93) >> 32;
  const uint64_t low = (uint64_t{1} << 32) / sizes.regions - 1;
  const uint64_t at = ((hash >> 32) & ~low) | (spread / sizes.regions);
  return (at * (sizes.regions * sizes.places)) >> 32;
}

TEST(FindPilots, GivesEachHashAPlaceOfItsOwn) {
  for (const int64_t step : {int64_t{1}, int64_t{1} << 20}) {
    const int64_t region = 3;
    const auto hashes = Hashes(40000, step, 4, region);
    const int64_t count = hashes.size();
    const PerfectHashSizes sizes{4, count / 3 + 1, count * 50 / 49 + 2};
    std::vector<uint16_t> pilots(sizes.buckets);

    ASSERT_EQ(FindPilots(sizes, region, hashes, absl::MakeSpan(pilots)),
              PilotSearch::kFound);
    std::set<uint64_t> places;
    for (const uint64_t hash : hashes) {
      const uint64_t bucket = ((hash >> 32) * (4 * sizes.buckets)) >> 32;
      const uint64_t pilot = pilots[bucket - region * sizes.buckets];
      places.insert(Place(sizes, hash, pilot));
    }
    EXPECT_EQ(places.size(), hashes.size());
    EXPECT_GE(*places.begin(), region * sizes.places);
    EXPECT_LT(*places.rbegin(), (region + 1) * sizes.places);
  }
}

TEST(FindPilots, SaysWhereThereIsNoRoom) {
  const auto hashes = Hashes(100, 1, 1, 0);
  std::vector<uint16_t> pilots(50);
  EXPECT_EQ(FindPilots({1, 50, 99}, 0, hashes, absl::MakeSpan(pilots)),
            PilotSearch::kNotFound);
}

TEST(FindPilots, RefusesHashesThatAreNotOfTheRegion) {
  std::vector<uint16_t> pilots(10);
  const auto span = absl::MakeSpan(pilots);
  const auto hashes = Hashes(20, 1, 1, 0);
  const std::vector<uint64_t> turned(hashes.rbegin(), hashes.rend());
  const std::vector<uint64_t> equal = {5, 5};

  EXPECT_EQ(FindPilots({2, 10, 40}, 0, hashes, span),
            PilotSearch::kNotOfRegion);
  EXPECT_EQ(FindPilots({1, 10, 40}, 0, turned, span),
            PilotSearch::kNotOfRegion);
  EXPECT_EQ(FindPilots({1, 10, 40}, 0, equal, span), PilotSearch::kNotOfRegion);
}

TEST(PerfectHashSizes, AreCheckedBeforeTheyAreMultiplied) {
  EXPECT_TRUE((PerfectHashSizes{1, 1, 1}.AreValid()));
  EXPECT_FALSE((PerfectHashSizes{3, 1, 1}.AreValid()));
  EXPECT_FALSE((PerfectHashSizes{2, int64_t{1} << 31, 1}.AreValid()));
  EXPECT_FALSE((PerfectHashSizes{int64_t{1} << 62, 4, 4}.AreValid()));
  EXPECT_FALSE((PerfectHashSizes{1, 0, 1}.AreValid()));
}

}  // namespace
}  // namespace tfembed
