#ifndef TFEMBED_CORE_OPTIMIZERS_ADAM_H_
#define TFEMBED_CORE_OPTIMIZERS_ADAM_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Adam (Kingma and Ba 2014); lazy, where only the rows of a step decay, unless
// the rule moves all rows. No bias correction: it belongs into the learning
// rate, as for TPUs, lr * sqrt(1 - beta_2^t) / (1 - beta_1^t).
struct Adam {
  static constexpr int kNumSlots = 2;

  Decay beta_1{0.9};
  Decay beta_2{0.999};
  float epsilon = 1e-7f;
  bool sum_inside_sqrt = true;

  template <class Reader>
  void Read(Reader* rule) {
    bool lazy_adam = true;
    rule->Read("lazy_adam", &lazy_adam);
    rule->MovesAllRows(!lazy_adam);
    rule->ReadDecayBelow1("beta_1", &beta_1);
    rule->ReadDecayBelow1("beta_2", &beta_2);
    rule->ReadPositive("epsilon", &epsilon);
    rule->Read("sum_inside_sqrt", &sum_inside_sqrt);
    rule->AddSlot("momenta", 0);
    rule->AddSlot("velocities", 0);
  }
};

// m = beta_1 * m + (1 - beta_1) * g
// v = beta_2 * v + (1 - beta_2) * g^2
// w -= lr * m / (sum_inside_sqrt ? sqrt(v + epsilon^2) : sqrt(v) + epsilon)
template <class Rate, class V>
static inline void Step(const Adam& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  V& momentum = slots[0];
  V& velocity = slots[1];
  momentum = Mean(rule.beta_1, momentum, gradient);
  velocity = Mean(rule.beta_2, velocity, gradient * gradient);
  const V divisor = rule.sum_inside_sqrt
                        ? Sqrt(velocity + rule.epsilon * rule.epsilon)
                        : Sqrt(velocity) + rule.epsilon;
  *weights -= learning_rate * momentum / divisor;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_ADAM_H_
