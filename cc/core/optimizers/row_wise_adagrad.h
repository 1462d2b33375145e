#ifndef TFEMBED_CORE_OPTIMIZERS_ROW_WISE_ADAGRAD_H_
#define TFEMBED_CORE_OPTIMIZERS_ROW_WISE_ADAGRAD_H_

#include "cc/core/simd/vector.h"

namespace tfembed {

// Adagrad with one accumulator a row, the sum of its gradients' mean squares,
// as FBGEMM's exact row-wise Adagrad.
struct RowWiseAdagrad {
  static constexpr int kNumSlots = 1;  // Accumulators, of one float.

  float initial_accumulator_value = 0;
  float epsilon = 1e-8f;
};

// a += mean(g^2) over the row
// r = lr / (sqrt(a) + epsilon)
static inline float RowRate(const RowWiseAdagrad& rule, float learning_rate,
                            float mean_square, float* accumulator) {
  *accumulator += mean_square;
  return learning_rate / (__builtin_sqrtf(*accumulator) + rule.epsilon);
}

// w -= r * g
static inline void Step(const RowWiseAdagrad&, float row_rate, Vec gradient,
                        Vec* weights, Vec* /*slots*/) {
  *weights -= row_rate * gradient;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_ROW_WISE_ADAGRAD_H_
