#ifndef TFEMBED_CORE_STEP_ID_BAGS_H_
#define TFEMBED_CORE_STEP_ID_BAGS_H_

#include <cstdint>
#include <vector>

namespace tfembed {

// The function that combines the rows e of one bag into one activation. With
// weights w:
//   sum: S = sum(w e);  mean: S / sum(w);  sqrtn: S / sqrt(sum(w^2)).
// If the divisor is 0 the activation is 0.
enum class Combiner { kSum, kMean, kSqrtn };

// The ids of one feature for a batch: bag b holds ids[splits[b] ..
// splits[b+1]). A sequence feature of length L has batch * L bags of at most
// one id, combined by sum. Borrows the arrays, which must outlive the call.
struct IdBags {
  const int64_t* ids = nullptr;
  const int64_t* splits = nullptr;  // num_bags + 1 entries; null: one id a bag.
  const float* weights = nullptr;   // One per id; null: all 1.
  int64_t num_bags = 0;
  Combiner combiner = Combiner::kSum;

  int64_t num_ids() const { return begin_of(num_bags); }
  // The index of the first id of `bag`; for num_bags, the end of the ids.
  int64_t begin_of(int64_t bag) const { return splits ? splits[bag] : bag; }
};

// Consecutive bags of one feature: a task's part of a step.
struct BagRange {
  int64_t feature = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Appends ranges of about `ids_per_range` ids and at most `bags_per_range`
// bags, which cover all bags.
void AppendBagRanges(const IdBags& bags, int64_t feature,
                     int64_t bags_per_range, int64_t ids_per_range,
                     std::vector<BagRange>* ranges);

// 1 / the combiner's divisor for the bags [begin, end), 0 where the divisor is
// 0: an activation is its scale times sum(w e), and so is its gradient.
void BagScales(const IdBags& bags, int64_t begin, int64_t end, float* scales);

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_ID_BAGS_H_
