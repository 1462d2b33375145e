#ifndef TFEMBED_CORE_TESTING_RANDOM_BAGS_H_
#define TFEMBED_CORE_TESTING_RANDOM_BAGS_H_

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cc/core/step/id_bags.h"

namespace tfembed {

struct RandomBagsOptions {
  int64_t num_bags = 50;
  int64_t num_rows = 40;  // Ids are in [0, num_rows).
  int64_t max_ids = 8;    // Per bag; some bags are empty.
  bool has_weights = false;
  bool has_splits = true;  // False: one id a bag.
  Combiner combiner = Combiner::kSum;
};

// Bags and the memory that they are views of.
class RandomBags {
 public:
  RandomBags(const RandomBagsOptions& options, uint32_t seed)
      : options_(options) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int64_t> id(0, options.num_rows - 1);
    std::uniform_int_distribution<int64_t> size(0, options.max_ids);
    std::uniform_real_distribution<float> weight(0.5f, 1.5f);
    splits_ = {0};
    for (int64_t bag = 0; bag < options.num_bags; ++bag) {
      const int64_t n = options.has_splits ? size(random) : 1;
      for (int64_t i = 0; i < n; ++i) {
        ids_.push_back(id(random));
        weights_.push_back(weight(random));
      }
      splits_.push_back(ids_.size());
    }
  }

  IdBags bags() const {
    IdBags bags;
    bags.ids = ids_.data();
    bags.splits = options_.has_splits ? splits_.data() : nullptr;
    bags.weights = options_.has_weights ? weights_.data() : nullptr;
    bags.num_bags = options_.num_bags;
    bags.combiner = options_.combiner;
    return bags;
  }

  std::vector<int64_t>& ids() { return ids_; }
  std::vector<float>& weights() { return weights_; }

 private:
  const RandomBagsOptions options_;
  std::vector<int64_t> ids_;
  std::vector<int64_t> splits_;
  std::vector<float> weights_;
};

inline std::vector<float> RandomFloats(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> values(n);
  for (float& v : values) v = value(random);
  return values;
}

// The divisor of a bag, in float64.
inline double BagDivisor(const IdBags& bags, int64_t bag) {
  if (bags.combiner == Combiner::kSum) return 1;
  double sum = 0, squares = 0;
  for (int64_t i = bags.begin_of(bag); i < bags.begin_of(bag + 1); ++i) {
    const double w = bags.weights == nullptr ? 1 : bags.weights[i];
    sum += w;
    squares += w * w;
  }
  return bags.combiner == Combiner::kMean ? sum : std::sqrt(squares);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_RANDOM_BAGS_H_
