#ifndef TFEMBED_CORE_OPTIMIZERS_ADAGRAD_MOMENTUM_H_
#define TFEMBED_CORE_OPTIMIZERS_ADAGRAD_MOMENTUM_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Adagrad with momentum, as tf.tpu.experimental.embedding.AdagradMomentum:
// beta2 < 1 makes the accumulator a moving average.
struct AdagradMomentum {
  static constexpr int kNumSlots = 2;

  float momentum = 0;
  bool use_nesterov = false;
  float exponent = 2;
  Decay beta2{1};
  float epsilon = 1e-10f;

  template <class Reader>
  void Read(Reader* rule) {
    rule->ReadFinite("momentum", &momentum);
    rule->Read("use_nesterov", &use_nesterov);
    rule->ReadPositive("exponent", &exponent);
    rule->ReadDecay("beta2", &beta2);
    rule->ReadPositive("epsilon", &epsilon);
    rule->AddSlot("accumulators", 0);
    rule->AddSlot("momenta", 0);
  }
};

// a = a + g^2 where beta2 = 1, else beta2 * a + (1 - beta2) * g^2
// s = g * (a + epsilon)^(-1 / exponent)
// m = momentum * m + s
// w -= lr * (use_nesterov ? momentum * m + s : m)
template <class Rate, class V>
static inline void Step(const AdagradMomentum& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  V& accumulator = slots[0];
  V& momentum = slots[1];
  if (rule.beta2.added == 0) {
    accumulator += gradient * gradient;
  } else {
    accumulator = Mean(rule.beta2, accumulator, gradient * gradient);
  }
  const V base = accumulator + rule.epsilon;
  const V scaled = rule.exponent == 2
                       ? gradient / Sqrt(base)
                       : gradient * Power(base, -1 / rule.exponent);
  momentum = rule.momentum * momentum + scaled;
  *weights -=
      learning_rate *
      (rule.use_nesterov ? rule.momentum * momentum + scaled : momentum);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_ADAGRAD_MOMENTUM_H_
