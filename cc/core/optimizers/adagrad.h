#ifndef TFEMBED_CORE_OPTIMIZERS_ADAGRAD_H_
#define TFEMBED_CORE_OPTIMIZERS_ADAGRAD_H_

#include "cc/core/simd/vector.h"

namespace tfembed {

// Adagrad (Duchi et al. 2011), element by element. TPUs have no epsilon; Keras'
// Adagrad has one under the root.
struct Adagrad {
  static constexpr int kNumSlots = 1;  // Accumulators.

  float initial_accumulator_value = 0.1f;
  float epsilon = 0;
};

// a += g^2
// w -= lr * g / sqrt(a + epsilon)
template <class Rate, class V>
static inline void Step(const Adagrad& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  slots[0] += gradient * gradient;
  *weights -= learning_rate * gradient / Sqrt(slots[0] + rule.epsilon);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_ADAGRAD_H_
