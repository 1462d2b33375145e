#include "cc/core/step/id_bags.h"

#include <algorithm>
#include <cmath>

namespace tfembed {
namespace {

float Divisor(Combiner combiner, const float* weights, int64_t n) {
  if (weights == nullptr) {
    const float count = n;
    return combiner == Combiner::kMean ? count : std::sqrt(count);
  }
  float sum = 0;
  if (combiner == Combiner::kMean) {
    for (int64_t i = 0; i < n; ++i) sum += weights[i];
    return sum;
  }
  for (int64_t i = 0; i < n; ++i) sum += weights[i] * weights[i];
  return std::sqrt(sum);
}

}  // namespace

void BagScales(const IdBags& bags, int64_t begin, int64_t end, float* scales) {
  const bool is_plain = bags.splits == nullptr && bags.weights == nullptr;
  if (bags.combiner == Combiner::kSum || is_plain) {
    std::fill(scales, scales + (end - begin), 1.0f);
    return;
  }
  for (int64_t bag = begin; bag < end; ++bag) {
    const int64_t first = bags.begin_of(bag);
    const float* weights =
        bags.weights == nullptr ? nullptr : bags.weights + first;
    const float divisor =
        Divisor(bags.combiner, weights, bags.begin_of(bag + 1) - first);
    *scales++ = divisor == 0 ? 0 : 1 / divisor;
  }
}

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
