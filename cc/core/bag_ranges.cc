#include "cc/core/bag_ranges.h"

#include <algorithm>

namespace tfembed {

void AppendBagRanges(const IdBags& bags, int64_t feature,
                     int64_t bags_per_range, int64_t ids_per_range,
                     std::vector<BagRange>* ranges) {
  const int64_t by_bags = (bags.num_bags + bags_per_range - 1) / bags_per_range;
  const int64_t by_ids = (bags.num_ids() + ids_per_range - 1) / ids_per_range;
  const int64_t n = std::min(std::max(by_bags, by_ids), bags.num_bags);
  for (int64_t i = 0; i < n; ++i) {
    ranges->push_back(
        {feature, bags.num_bags * i / n, bags.num_bags * (i + 1) / n});
  }
}

}  // namespace tfembed
