#ifndef TFEMBED_CORE_TESTING_GRADIENT_FEATURES_H_
#define TFEMBED_CORE_TESTING_GRADIENT_FEATURES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/testing/near.h"
#include "cc/core/testing/random_bags.h"

namespace tfembed {

// Random features of one table with random gradients, and what the gradients
// of its ids are.
class GradientFeatures {
 public:
  explicit GradientFeatures(int64_t dim) : dim_(dim) {}

  void Add(const RandomBagsOptions& options, uint32_t seed) {
    bags_.emplace_back(options, seed);
    gradients_.push_back(RandomFloats(options.num_bags * stride(), seed + 1));
  }

  RandomBags& bags(int64_t feature) { return bags_[feature]; }
  std::vector<float>& gradients(int64_t feature) { return gradients_[feature]; }
  int64_t stride() const { return dim_ + 1; }

  std::vector<BagGradients> features() const {
    std::vector<BagGradients> features;
    for (size_t f = 0; f < bags_.size(); ++f) {
      features.push_back({bags_[f].bags(), gradients_[f].data(), stride()});
    }
    return features;
  }

  // The gradient of every occurrence of every id, in order: [occurrence][dim].
  std::map<int64_t, std::vector<std::vector<double>>> Occurrences() const {
    std::map<int64_t, std::vector<std::vector<double>>> occurrences;
    for (size_t f = 0; f < bags_.size(); ++f) {
      const IdBags bags = bags_[f].bags();
      for (int64_t bag = 0; bag < bags.num_bags; ++bag) {
        const double divisor = BagDivisor(bags, bag);
        for (int64_t i = bags.begin_of(bag); i < bags.begin_of(bag + 1); ++i) {
          const double weight = bags.weights ? bags.weights[i] : 1;
          std::vector<double> gradient(dim_);
          for (int64_t c = 0; c < dim_; ++c) {
            gradient[c] = divisor == 0 ? 0
                                       : weight / divisor *
                                             gradients_[f][bag * stride() + c];
          }
          occurrences[bags.ids[i]].push_back(gradient);
        }
      }
    }
    return occurrences;
  }

  std::map<int64_t, std::vector<Expected>> Sums() const {
    std::map<int64_t, std::vector<Expected>> sums;
    for (const auto& [id, gradients] : Occurrences()) {
      std::vector<Expected>& sum = sums[id];
      sum.resize(dim_);
      for (const auto& gradient : gradients) {
        for (int64_t c = 0; c < dim_; ++c) sum[c].Add(gradient[c]);
      }
    }
    return sums;
  }

 private:
  const int64_t dim_;
  std::deque<RandomBags> bags_;
  std::deque<std::vector<float>> gradients_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_GRADIENT_FEATURES_H_
