#ifndef TFEMBED_CORE_OPTIMIZERS_LION_H_
#define TFEMBED_CORE_OPTIMIZERS_LION_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Lion (Chen et al. 2023).
struct Lion {
  static constexpr int kNumSlots = 1;

  Decay beta_1{0.9};
  Decay beta_2{0.99};

  template <class Reader>
  void Read(Reader* rule) {
    bool lazy_lion = true;
    rule->Read("lazy_lion", &lazy_lion);
    rule->MovesAllRows(!lazy_lion);
    rule->ReadDecayBelow1("beta_1", &beta_1);
    rule->ReadDecayBelow1("beta_2", &beta_2);
    rule->AddSlot("momenta", 0);
  }
};

// w -= lr * sign(beta_1 * m + (1 - beta_1) * g)
// m = beta_2 * m + (1 - beta_2) * g
template <class Rate, class V>
static inline void Step(const Lion& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  V& momentum = slots[0];
  *weights -= learning_rate * Sign(Mean(rule.beta_1, momentum, gradient));
  momentum = Mean(rule.beta_2, momentum, gradient);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_LION_H_
