#ifndef TFEMBED_CORE_OPTIMIZERS_FORMULA_H_
#define TFEMBED_CORE_OPTIMIZERS_FORMULA_H_

#include "cc/core/simd/vector.h"

// This header has the common part of all update rules. A rule is a header of
// this folder: a struct of its parameters, and a function Step() that is its
// formula. V stands for Vec there, or for whole tensors of a compiler; Rate for
// float, or for a scalar of that compiler.
//
// Files of every instruction set include these headers. So functions are
// `static` or templates, and there is nothing of absl or the standard library
// (vector.h says why): Read(), by which a rule takes its parameters out of a
// text, is a template over its reader (RuleReader in update_rule.cc).
namespace tfembed {

// The parameters that all update rules share; update_rule.h says what each
// means.
struct CommonParameters {
  float clip_gradient_min = -__builtin_inff();
  float clip_gradient_max = __builtin_inff();
  float clip_weight_min = -__builtin_inff();
  float clip_weight_max = __builtin_inff();
  float weight_decay = 0;
  bool weight_decay_times_learning_rate = false;
  bool accumulate = true;
};

// The two weights of a moving average: of the old mean, and of the new value.
// Both are rounded once: 1 - 0.999f is off by 1e-5.
struct Decay {
  explicit constexpr Decay(double kept)
      : kept(static_cast<float>(kept)), added(static_cast<float>(1 - kept)) {}

  float kept;
  float added;
};

// kept * mean + (1 - kept) * next.
template <class V>
static inline V Mean(const Decay& decay, const V& mean, const V& next) {
  return decay.kept * mean + decay.added * next;
}

template <class V>
static inline V ClipGradient(const CommonParameters& common,
                             const V& gradient) {
  return Clamp(gradient, common.clip_gradient_min, common.clip_gradient_max);
}

// A rule's Step() with the steps that all rules share around it: all
// parameters' meaning in one place. `rate` is the rule's own learning rate.
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

#endif  // TFEMBED_CORE_OPTIMIZERS_FORMULA_H_
