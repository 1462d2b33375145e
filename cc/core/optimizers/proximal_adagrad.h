#ifndef TFEMBED_CORE_OPTIMIZERS_PROXIMAL_ADAGRAD_H_
#define TFEMBED_CORE_OPTIMIZERS_PROXIMAL_ADAGRAD_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Adagrad with a proximal step for l1 and l2 (Duchi et al. 2009, 2011), as
// TensorFlow's ApplyProximalAdagrad.
struct ProximalAdagrad {
  static constexpr int kNumSlots = 1;

  float l1_regularization_strength = 0;
  float l2_regularization_strength = 0;
  float initial_accumulator_value = 0.1f;

  template <class Reader>
  void Read(Reader* rule) {
    rule->ReadNotNegative("l1_regularization_strength",
                          &l1_regularization_strength);
    rule->ReadNotNegative("l2_regularization_strength",
                          &l2_regularization_strength);
    rule->ReadPositive("initial_accumulator_value", &initial_accumulator_value);
    rule->AddSlot("accumulators", initial_accumulator_value);
  }
};

// a += g^2
// r = lr / sqrt(a)
// w = shrink(w - r * g, r * l1) / (1 + r * l2), where shrink(x, b) moves x by b
//     towards 0, and to 0 at most
template <class Rate, class V>
static inline void Step(const ProximalAdagrad& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  slots[0] += gradient * gradient;
  const V rate = learning_rate / Sqrt(slots[0]);
  *weights = Shrink(*weights - rate * gradient,
                    rate * rule.l1_regularization_strength) /
             (1 + rate * rule.l2_regularization_strength);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_PROXIMAL_ADAGRAD_H_
