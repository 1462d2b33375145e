#ifndef TFEMBED_CORE_OPTIMIZERS_ADADELTA_H_
#define TFEMBED_CORE_OPTIMIZERS_ADADELTA_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Adadelta (Zeiler 2012), as TensorFlow's ApplyAdadelta.
struct Adadelta {
  static constexpr int kNumSlots = 2;

  Decay rho{0.95};
  float epsilon = 1e-7f;

  template <class Reader>
  void Read(Reader* rule) {
    rule->ReadDecayBelow1("rho", &rho);
    rule->ReadPositive("epsilon", &epsilon);
    rule->AddSlot("accumulators", 0);
    rule->AddSlot("updates", 0);
  }
};

// a = rho * a + (1 - rho) * g^2
// d = g * sqrt(u + epsilon) / sqrt(a + epsilon)
// u = rho * u + (1 - rho) * d^2
// w -= lr * d
template <class Rate, class V>
static inline void Step(const Adadelta& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  V& accumulator = slots[0];
  V& update = slots[1];
  accumulator = Mean(rule.rho, accumulator, gradient * gradient);
  const V delta =
      gradient * Sqrt(update + rule.epsilon) / Sqrt(accumulator + rule.epsilon);
  update = Mean(rule.rho, update, delta * delta);
  *weights -= learning_rate * delta;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_ADADELTA_H_
