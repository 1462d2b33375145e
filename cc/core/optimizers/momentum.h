#ifndef TFEMBED_CORE_OPTIMIZERS_MOMENTUM_H_
#define TFEMBED_CORE_OPTIMIZERS_MOMENTUM_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Gradient descent with momentum, as TensorFlow's ApplyMomentum: the momentum
// is of gradients, not of steps, so a new learning rate acts at once.
struct Momentum {
  static constexpr int kNumSlots = 1;

  float momentum = 0.9f;
  bool use_nesterov = false;

  template <class Reader>
  void Read(Reader* rule) {
    rule->ReadFinite("momentum", &momentum);
    rule->Read("use_nesterov", &use_nesterov);
    rule->AddSlot("momenta", 0);
  }
};

// m = momentum * m + g
// w -= lr * (use_nesterov ? g + momentum * m : m)
template <class Rate, class V>
static inline void Step(const Momentum& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  V& momentum = slots[0];
  momentum = rule.momentum * momentum + gradient;
  *weights -=
      learning_rate *
      (rule.use_nesterov ? gradient + rule.momentum * momentum : momentum);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_MOMENTUM_H_
