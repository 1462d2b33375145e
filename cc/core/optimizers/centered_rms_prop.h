#ifndef TFEMBED_CORE_OPTIMIZERS_CENTERED_RMS_PROP_H_
#define TFEMBED_CORE_OPTIMIZERS_CENTERED_RMS_PROP_H_

#include "cc/core/simd/vector.h"
#include "cc/core/support/decay.h"

namespace tfembed {

// RMSProp over the variance of the gradients (Graves 2013), as TensorFlow's
// ApplyCenteredRMSProp.
struct CenteredRmsProp {
  static constexpr int kNumSlots = 3;  // Mean squares, momenta, means.

  Decay rho{0.9};
  float momentum = 0;
  float epsilon = 1e-10f;
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
