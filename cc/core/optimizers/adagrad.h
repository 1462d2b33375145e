#ifndef TFEMBED_CORE_OPTIMIZERS_ADAGRAD_H_
#define TFEMBED_CORE_OPTIMIZERS_ADAGRAD_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Adagrad (Duchi et al. 2011), element by element. TPUs have no epsilon; Keras'
// Adagrad has one under the root.
struct Adagrad {
  static constexpr int kNumSlots = 1;

  float initial_accumulator_value = 0.1f;
  float epsilon = 0;

  template <class Reader>
  void Read(Reader* rule) {
    rule->Read("initial_accumulator_value", &initial_accumulator_value);
    rule->ReadNotNegative("epsilon", &epsilon);
    // Else an element whose gradient is 0 would become 0 / 0.
    rule->Require(initial_accumulator_value >= 0 &&
                      __builtin_isfinite(initial_accumulator_value) &&
                      initial_accumulator_value + epsilon > 0,
                  "initial_accumulator_value",
                  "finite and positive (or 0 with a positive epsilon)");
    rule->AddSlot("accumulators", initial_accumulator_value);
  }
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
