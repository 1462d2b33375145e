#ifndef TFEMBED_CORE_OPTIMIZERS_ROW_WISE_ADAGRAD_H_
#define TFEMBED_CORE_OPTIMIZERS_ROW_WISE_ADAGRAD_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Adagrad with one accumulator a row, the sum of its gradients' mean squares,
// as FBGEMM's exact row-wise Adagrad.
struct RowWiseAdagrad {
  static constexpr int kNumSlots = 1;
  // The slots from which RowRate takes the rate of a row.
  static constexpr int kRowRateSlots = 1;

  float initial_accumulator_value = 0;
  float epsilon = 1e-8f;

  template <class Reader>
  void Read(Reader* rule) {
    rule->ReadNotNegative("initial_accumulator_value",
                          &initial_accumulator_value);
    rule->ReadPositive("epsilon", &epsilon);
    rule->AddRowWiseSlot("accumulators", initial_accumulator_value);
  }
};

// a += mean(g^2) over the row
template <class V>
static inline void Accumulate(const RowWiseAdagrad&, const V& mean_square,
                              V* accumulator) {
  *accumulator += mean_square;
}

// r = lr / (sqrt(a) + epsilon)
template <class Rate, class V>
static inline V RowRate(const RowWiseAdagrad& rule, const Rate& learning_rate,
                        const V& accumulator) {
  return learning_rate / (Sqrt(accumulator) + rule.epsilon);
}

// Both.
template <class Rate, class V>
static inline V RowRate(const RowWiseAdagrad& rule, const Rate& learning_rate,
                        const V& mean_square, V* accumulator) {
  Accumulate(rule, mean_square, accumulator);
  return RowRate(rule, learning_rate, *accumulator);
}

// w -= r * g
template <class Rate, class V>
static inline void Step(const RowWiseAdagrad&, const Rate& row_rate,
                        const V& gradient, V* weights, V* /*slots*/) {
  *weights -= row_rate * gradient;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_ROW_WISE_ADAGRAD_H_
