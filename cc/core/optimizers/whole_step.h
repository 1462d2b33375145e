#ifndef TFEMBED_CORE_OPTIMIZERS_WHOLE_STEP_H_
#define TFEMBED_CORE_OPTIMIZERS_WHOLE_STEP_H_

#include "cc/core/optimizers/common_parameters.h"
#include "cc/core/simd/vector.h"

// The steps that all rules share around their own Step(). V stands for Vec, or
// for whole tensors of a compiler; Rate for float, or for a scalar of that
// compiler. `static`, as vector.h asks of what several instruction sets share.
namespace tfembed {

template <class V>
static inline V ClipGradient(const CommonParameters& common,
                             const V& gradient) {
  return Clamp(gradient, common.clip_gradient_min, common.clip_gradient_max);
}

// All parameters' meaning in one place. `rate` is the rule's own learning rate.
template <class Rule, class Rate, class OwnRate, class V>
static inline void WholeStep(const Rule& rule, const CommonParameters& common,
                             const Rate& learning_rate, const OwnRate& rate,
                             const V& gradient, V* weights, V* slots) {
  if (common.weight_decay != 0) {
    if (common.weight_decay_times_learning_rate) {
      *weights -= common.weight_decay * learning_rate * *weights;
    } else {
      *weights -= common.weight_decay * *weights;
    }
  }
  Step(rule, rate, ClipGradient(common, gradient), weights, slots);
  *weights = Clamp(*weights, common.clip_weight_min, common.clip_weight_max);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_WHOLE_STEP_H_
