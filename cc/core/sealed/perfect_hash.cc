#include "cc/core/sealed/perfect_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tfembed {
namespace {

constexpr uint64_t kPilots = uint64_t{1} << 16;

// The places of one region that have a hash, and a bucket's way to new ones.
class Region {
 public:
  Region(const PerfectHashSizes& sizes, int64_t region)
      : places_(sizes), first_(region * sizes.places), used_(sizes.places) {}

  // Whether no two of the hashes, and none of those before, have one place by
  // this pilot; if so, the places are theirs.
  bool Take(absl::Span<const uint64_t> hashes, uint64_t pilot) {
    taken_.clear();
    for (const uint64_t hash : hashes) {
      const size_t place = places_.PlaceOf(hash, pilot) - first_;
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
  const KeyPlaces places_;
  const uint64_t first_;
  std::vector<bool> used_;
  std::vector<size_t> taken_;
};

}  // namespace

PilotSearch FindPilots(const PerfectHashSizes& sizes, int64_t region,
                       absl::Span<const uint64_t> hashes,
                       absl::Span<uint16_t> pilots) {
  if (static_cast<int64_t>(hashes.size()) > sizes.places) {
    return PilotSearch::kNotFound;
  }
  // Buckets come in the order of the hashes.
  std::vector<uint32_t> begins(sizes.buckets + 1, 0);
  const KeyPlaces all(sizes);
  const uint64_t first = region * sizes.buckets;
  uint32_t largest = 0;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const uint64_t bucket = all.BucketOf(hashes[i]);
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
