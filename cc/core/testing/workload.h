#ifndef TFEMBED_CORE_TESTING_WORKLOAD_H_
#define TFEMBED_CORE_TESTING_WORKLOAD_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "cc/core/step/id_bags.h"
#include "cc/core/support/memory_block.h"

namespace tfembed {

// The workload of a recommendation model: a batch of 4096 samples with 26
// features, each with a table of its own, ids drawn by Zipf's law with exponent
// 1.05 and hot rows spread over the table; one id a bag, or 10 to 30.
class Workload {
 public:
  static constexpr int64_t kFeatures = 26;
  static constexpr int64_t kBatch = 4096;

  Workload(int64_t num_rows, bool multi_hot)
      : num_batches_(multi_hot ? 4 : 16), num_rows_(num_rows) {
    std::mt19937_64 random(20261120);
    const std::vector<double> cumulative = Zipf();
    std::vector<int64_t> permutation(num_rows);
    for (int64_t i = 0; i < num_rows; ++i) permutation[i] = i;
    std::shuffle(permutation.begin(), permutation.end(), random);
    std::uniform_int_distribution<int64_t> size(10, 30);
    std::uniform_real_distribution<double> uniform(0, 1);
    bags_.resize(num_batches_ * kFeatures);
    for (Bags& bags : bags_) {
      for (int64_t bag = 0; bag < kBatch; ++bag) {
        for (int64_t n = multi_hot ? size(random) : 1; n > 0; --n) {
          const int64_t rank =
              std::lower_bound(cumulative.begin(), cumulative.end(),
                               uniform(random)) -
              cumulative.begin();
          bags.ids.push_back(permutation[std::min(rank, num_rows - 1)]);
        }
        bags.splits.push_back(bags.ids.size());
      }
    }
  }

  int64_t num_batches() const { return num_batches_; }

  IdBags bags(int64_t batch, int64_t feature) const {
    const Bags& bags = bags_[batch % num_batches_ * kFeatures + feature];
    return {bags.ids.data(), bags.splits.data(), nullptr, kBatch,
            Combiner::kMean};
  }

 private:
  struct Bags {
    std::vector<int64_t> ids;
    std::vector<int64_t> splits = {0};
  };

  std::vector<double> Zipf() const {
    std::vector<double> cumulative(num_rows_);
    double sum = 0;
    for (int64_t i = 0; i < num_rows_; ++i) {
      cumulative[i] = sum += std::pow(i + 1.0, -1.05);
    }
    for (double& c : cumulative) c /= sum;
    return cumulative;
  }

  const int64_t num_batches_;
  const int64_t num_rows_;
  std::vector<Bags> bags_;
};

// n floats on huge pages.
class FloatArray {
 public:
  FloatArray(int64_t n, float value)
      : block_(MemoryBlock::Allocate(n * sizeof(float)).value()) {
    std::fill_n(data(), n, value);
  }

  float* data() { return reinterpret_cast<float*>(block_.data()); }

 private:
  MemoryBlock block_;
};

// Runs body(0), body(1), ... and prints the median and the least time of a run.
inline void PrintTime(const char* name, int64_t runs,
                      const std::function<void(int64_t)>& body) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int64_t run = -3; run < runs; ++run) {
    const Clock::time_point start = Clock::now();
    body(run + 3);
    const std::chrono::duration<double, std::milli> time = Clock::now() - start;
    if (run >= 0) times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  std::printf("%-40s median %7.2f ms, least %7.2f ms\n", name,
              times[times.size() / 2], times[0]);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_WORKLOAD_H_
