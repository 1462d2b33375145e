#ifndef TFEMBED_CORE_OPTIMIZERS_SGD_H_
#define TFEMBED_CORE_OPTIMIZERS_SGD_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Stochastic gradient descent.
struct Sgd {
  static constexpr int kNumSlots = 0;

  template <class Reader>
  void Read(Reader* /*rule*/) {}
};

// w -= lr * g
template <class Rate, class V>
static inline void Step(const Sgd&, const Rate& learning_rate,
                        const V& gradient, V* weights, V* /*slots*/) {
  *weights -= learning_rate * gradient;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_SGD_H_
