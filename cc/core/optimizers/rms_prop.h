#ifndef TFEMBED_CORE_OPTIMIZERS_RMS_PROP_H_
#define TFEMBED_CORE_OPTIMIZERS_RMS_PROP_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// RMSProp (Tieleman and Hinton 2012), as TensorFlow's ApplyRMSProp: epsilon is
// under the root, and the momentum is of steps.
struct RmsProp {
  static constexpr int kNumSlots = 2;

  Decay rho{0.9};
  float momentum = 0;
  float epsilon = 1e-10f;

  template <class Reader>
  void Read(Reader* rule) {
    rule->ReadDecayBelow1("rho", &rho);
    rule->ReadFinite("momentum", &momentum);
    rule->ReadPositive("epsilon", &epsilon);
    rule->AddSlot("ms", 0);   // Mean squares.
    rule->AddSlot("mom", 0);  // Momenta.
  }
};

// s = rho * s + (1 - rho) * g^2
// m = momentum * m + lr * g / sqrt(s + epsilon)
// w -= m
template <class Rate, class V>
static inline void Step(const RmsProp& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  V& square = slots[0];
  V& momentum = slots[1];
  square = Mean(rule.rho, square, gradient * gradient);
  momentum = rule.momentum * momentum +
             learning_rate * gradient / Sqrt(square + rule.epsilon);
  *weights -= momentum;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_RMS_PROP_H_
