#ifndef TFEMBED_CORE_OPTIMIZERS_YOGI_H_
#define TFEMBED_CORE_OPTIMIZERS_YOGI_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Yogi (Zaheer et al. 2018, algorithm 2) with a proximal step for l1 and l2,
// lazy. No bias correction, as for Adam.
struct Yogi {
  static constexpr int kNumSlots = 2;

  Decay beta_1{0.9};
  Decay beta_2{0.999};
  float epsilon = 1e-3f;
  float l1_regularization_strength = 0;
  float l2_regularization_strength = 0;
  float initial_accumulator_value = 1e-6f;

  template <class Reader>
  void Read(Reader* rule) {
    rule->ReadDecayBelow1("beta_1", &beta_1);
    rule->ReadDecayBelow1("beta_2", &beta_2);
    rule->ReadPositive("epsilon", &epsilon);
    rule->ReadNotNegative("l1_regularization_strength",
                          &l1_regularization_strength);
    rule->ReadNotNegative("l2_regularization_strength",
                          &l2_regularization_strength);
    rule->ReadNotNegative("initial_accumulator_value",
                          &initial_accumulator_value);
    rule->AddSlot("v", initial_accumulator_value);
    rule->AddSlot("m", 0);
  }
};

// m = beta_1 * m + (1 - beta_1) * g
// v -= (1 - beta_2) * sign(v - g^2) * g^2
// r = lr / (sqrt(v) + epsilon)
// w = shrink(w - r * m, r * l1) / (1 + r * l2)
template <class Rate, class V>
static inline void Step(const Yogi& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  V& velocity = slots[0];
  V& momentum = slots[1];
  const V square = gradient * gradient;
  momentum = Mean(rule.beta_1, momentum, gradient);
  velocity -= rule.beta_2.added * (Sign(velocity - square) * square);
  const V rate = learning_rate / (Sqrt(velocity) + rule.epsilon);
  *weights = Shrink(*weights - rate * momentum,
                    rate * rule.l1_regularization_strength) /
             (1 + rate * rule.l2_regularization_strength);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_YOGI_H_
