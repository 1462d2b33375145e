#ifndef TFEMBED_CORE_OPTIMIZERS_CENTERED_RMS_PROP_H_
#define TFEMBED_CORE_OPTIMIZERS_CENTERED_RMS_PROP_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// RMSProp over the variance of the gradients (Graves 2013), as TensorFlow's
// ApplyCenteredRMSProp.
struct CenteredRmsProp {
  static constexpr int kNumSlots = 3;

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
    rule->AddSlot("mg", 0);   // Means.
  }
};

// s = rho * s + (1 - rho) * g^2
// a = rho * a + (1 - rho) * g
// m = momentum * m + lr * g / sqrt(max(s - a^2, 0) + epsilon)
// w -= m
template <class Rate, class V>
static inline void Step(const CenteredRmsProp& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  V& square = slots[0];
  V& momentum = slots[1];
  V& mean = slots[2];
  square = Mean(rule.rho, square, gradient * gradient);
  mean = Mean(rule.rho, mean, gradient);
  // A variance is not negative, but its rounding may be.
  const V variance = Clamp(square - mean * mean, 0, __builtin_inff());
  momentum = rule.momentum * momentum +
             learning_rate * gradient / Sqrt(variance + rule.epsilon);
  *weights -= momentum;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_CENTERED_RMS_PROP_H_
