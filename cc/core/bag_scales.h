#ifndef TFEMBED_CORE_BAG_SCALES_H_
#define TFEMBED_CORE_BAG_SCALES_H_

#include <cstdint>

#include "cc/core/id_bags.h"

namespace tfembed {

// 1 / the combiner's divisor for the bags [begin, end), 0 where the divisor is
// 0: an activation is its scale times sum(w e), and so is its gradient.
void BagScales(const IdBags& bags, int64_t begin, int64_t end, float* scales);

}  // namespace tfembed

#endif  // TFEMBED_CORE_BAG_SCALES_H_
