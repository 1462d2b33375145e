#include "cc/core/sealed/perfect_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tfembed {
namespace {

constexpr uint64_t kPilotFactor = 0x9e3779b97f4a7c15ULL;
constexpr uint64_t kSpreadFactor = 0xd6e8feb86659fd93ULL;
constexpr uint64_t kPilots = uint64_t{1} << 16;
constexpr int64_t kMostProduct = int64_t{1} << 32;

bool IsProductValid(int64_t a, int64_t b) {
  return a >= 1 && b >= 1 && a < kMostProduct && b < kMostProduct / a;
}

// The places of one region that have a hash, and a bucket's way to new ones.
class Region {
 public:
  Region(const PerfectHashSizes& sizes, int64_t region)
      : all_places_(sizes.regions * sizes.places),
        first_(region * sizes.places),
        used_(sizes.places) {
    while ((int64_t{1} << bits_) < sizes.regions) ++bits_;
    top_ = static_cast<uint64_t>(region) << (32 - bits_);
  }

  // Whether no two of the hashes, and none of those before, have one place by
  // this pilot; if so, the places are theirs.
  bool Take(absl::Span<const uint64_t> hashes, uint64_t pilot) {
    const uint64_t shift = pilot * kPilotFactor;
    taken_.clear();
    for (const uint64_t hash : hashes) {
      const uint64_t spread = ((hash ^ shift) * kSpreadFactor) >> 32;
      const uint64_t at = top_ | (spread >> bits_);
      const size_t place = ((at * all_places_) >> 32) - first_;
      if (used_[place] ||
          std::find(taken_.begin(), taken_.end(), place) != taken_.end()) {
        return false;
      }
      taken_.push_back(place);
    }
    for (const size_t place : taken_) used_[place] = true;
    return true;
  }

 private:
  const uint64_t all_places_;
  const uint64_t first_;
  int bits_ = 0;
  uint64_t top_ = 0;  // The region's bits of the upper half of a hash.
  std::vector<bool> used_;
  std::vector<size_t> taken_;
};

}  // namespace

bool PerfectHashSizes::AreValid() const {
  return regions >= 1 && (regions & (regions - 1)) == 0 &&
         IsProductValid(regions, buckets) && IsProductValid(regions, places);
}

PilotSearch FindPilots(const PerfectHashSizes& sizes, int64_t region,
                       absl::Span<const uint64_t> hashes,
                       absl::Span<uint16_t> pilots) {
  if (static_cast<int64_t>(hashes.size()) > sizes.places) {
    return PilotSearch::kNotFound;
  }
  // Buckets come in the order of the hashes.
  std::vector<uint32_t> begins(sizes.buckets + 1, 0);
  const uint64_t all_buckets = sizes.regions * sizes.buckets;
  const uint64_t first = region * sizes.buckets;
  uint32_t largest = 0;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const uint64_t bucket = ((hashes[i] >> 32) * all_buckets) >> 32;
    if (bucket < first || bucket - first >= pilots.size() ||
        (i > 0 && hashes[i - 1] >= hashes[i])) {
      return PilotSearch::kNotOfRegion;
    }
    largest = std::max(largest, ++begins[bucket - first + 1]);
  }
  for (int64_t b = 0; b < sizes.buckets; ++b) begins[b + 1] += begins[b];
  // Large buckets first: they need free places most.
  std::vector<std::vector<uint32_t>> by_size(largest + 1);
  for (int64_t b = 0; b < sizes.buckets; ++b) {
    by_size[begins[b + 1] - begins[b]].push_back(static_cast<uint32_t>(b));
  }
  std::fill(pilots.begin(), pilots.end(), uint16_t{0});
  Region places(sizes, region);
  for (uint32_t size = largest; size > 0; --size) {
    for (const uint32_t b : by_size[size]) {
      const auto mine = hashes.subspan(begins[b], size);
      uint64_t pilot = 0;
      while (pilot < kPilots && !places.Take(mine, pilot)) ++pilot;
      if (pilot == kPilots) return PilotSearch::kNotFound;
      pilots[b] = static_cast<uint16_t>(pilot);
    }
  }
  return PilotSearch::kFound;
}

}  // namespace tfembed
