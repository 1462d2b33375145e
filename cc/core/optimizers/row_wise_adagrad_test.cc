#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/optimizers/update_rule.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/testing/kernels_test_base.h"
#include "cc/core/testing/near.h"
#include "cc/core/testing/random_bags.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kRows = 3;
constexpr float kLearningRate = 0.05f;

// Rows with one accumulator each, and their gradients.
struct Rows {
  explicit Rows(int64_t dim)
      : dim(dim),
        values(RandomFloats(kRows * dim, 1)),
        gradients(RandomFloats(kRows * dim, 2)),
        accumulators(kRows, 0.25f) {}

  void Apply(const std::string& text) {
    MutableRow rows[kRows];
    for (int64_t i = 0; i < kRows; ++i) {
      rows[i].value = values.data() + i * dim;
      rows[i].slots[0] = accumulators.data() + i;
    }
    UpdateRule::Parse(text).value()->Apply(rows, gradients.data(), kRows, dim,
                                           kLearningRate);
  }

  const int64_t dim;
  std::vector<float> values;
  std::vector<float> gradients;
  std::vector<float> accumulators;
};

class RowWiseAdagradTest : public KernelsTestBase<const char*> {};

TEST_P(RowWiseAdagradTest, FollowsItsFormulaForAnyWidth) {
  for (const int64_t dim : {1, 3, 8, 16, 17, 31, 64, 100, 128}) {
    Rows rows(dim);
    const std::vector<float> before = rows.values;
    rows.Apply(
        "row_wise_adagrad epsilon=0.01 clip_gradient_max=0.5 "
        "weight_decay=0.125 clip_weight_min=-0.75");
    for (int64_t i = 0; i < kRows; ++i) {
      Expected accumulator;
      accumulator.Add(0.25);
      std::vector<double> clipped;
      for (int64_t c = i * dim; c < (i + 1) * dim; ++c) {
        clipped.push_back(std::fmin(rows.gradients[c], 0.5f));
        accumulator.Add(clipped.back() * clipped.back() / dim);
      }
      ASSERT_TRUE(IsNear(rows.accumulators[i], accumulator)) << "dim " << dim;
      const double rate = kLearningRate / (std::sqrt(accumulator.value) + 0.01);
      for (int64_t c = 0; c < dim; ++c) {
        Expected value;
        value.Add(before[i * dim + c] * 0.875);
        value.Add(-rate * clipped[c]);
        value.value = std::fmax(value.value, -0.75);
        ASSERT_TRUE(IsNear(rows.values[i * dim + c], value)) << "dim " << dim;
      }
    }
  }
}

TEST_P(RowWiseAdagradTest, GivesTheBitsOfTheBaseline) {
  for (const int64_t dim : {5, 16, 100, 128}) {
    Rows rows(dim), baseline(dim);
    rows.Apply("row_wise_adagrad");
    const Kernels& active = ActiveKernels();
    SetActiveKernels(*FindKernels("baseline"));
    baseline.Apply("row_wise_adagrad");
    SetActiveKernels(active);
    EXPECT_EQ(rows.values, baseline.values);
    EXPECT_EQ(rows.accumulators, baseline.accumulators);
  }
}

TEST_P(RowWiseAdagradTest, StaysFiniteWhereNothingWasAccumulated) {
  Rows rows(20);
  rows.accumulators.assign(kRows, 0);
  rows.gradients.assign(kRows * 20, 0);
  const std::vector<float> before = rows.values;
  rows.Apply("row_wise_adagrad");
  EXPECT_EQ(rows.values, before);
}

INSTANTIATE_TEST_SUITE_P(Targets, RowWiseAdagradTest,
                         testing::Values("baseline", "avx2", "avx512"));

}  // namespace
}  // namespace tfembed
