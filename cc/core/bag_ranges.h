#ifndef TFEMBED_CORE_BAG_RANGES_H_
#define TFEMBED_CORE_BAG_RANGES_H_

#include <cstdint>
#include <vector>

#include "cc/core/id_bags.h"

namespace tfembed {

// Consecutive bags of one feature: a task's share of a step.
struct BagRange {
  int64_t feature = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Appends ranges that cover all bags of `bags`, of about `ids_per_range` ids
// and at most `bags_per_range` bags.
void AppendBagRanges(const IdBags& bags, int64_t feature,
                     int64_t bags_per_range, int64_t ids_per_range,
                     std::vector<BagRange>* ranges);

}  // namespace tfembed

#endif  // TFEMBED_CORE_BAG_RANGES_H_
