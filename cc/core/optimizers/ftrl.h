#ifndef TFEMBED_CORE_OPTIMIZERS_FTRL_H_
#define TFEMBED_CORE_OPTIMIZERS_FTRL_H_

#include "cc/core/optimizers/formula.h"

namespace tfembed {

// Follow the regularized leader (McMahan et al. 2013), as
// tf.tpu.experimental.embedding.FTRL.
struct Ftrl {
  static constexpr int kNumSlots = 2;

  float learning_rate_power = -0.5f;
  float l1_regularization_strength = 0;
  float l2_regularization_strength = 0;
  float beta = 0;
  float initial_accumulator_value = 0.1f;
  bool multiply_linear_by_learning_rate = false;

  template <class Reader>
  void Read(Reader* rule) {
    rule->Read("learning_rate_power", &learning_rate_power);
    rule->Require(
        learning_rate_power <= 0 && __builtin_isfinite(learning_rate_power),
        "learning_rate_power", "finite and not positive");
    rule->ReadNotNegative("l1_regularization_strength",
                          &l1_regularization_strength);
    rule->ReadNotNegative("l2_regularization_strength",
                          &l2_regularization_strength);
    rule->ReadNotNegative("beta", &beta);
    rule->ReadPositive("initial_accumulator_value", &initial_accumulator_value);
    rule->Read("multiply_linear_by_learning_rate",
               &multiply_linear_by_learning_rate);
    rule->DividesByLearningRate(!multiply_linear_by_learning_rate);
    rule->AddSlot("accumulators", initial_accumulator_value);
    rule->AddSlot("linears", 0);
  }
};

template <class V>
static inline V FtrlPower(const Ftrl& rule, const V& accumulator) {
  return rule.learning_rate_power == -0.5f
             ? Sqrt(accumulator)
             : Power(accumulator, -rule.learning_rate_power);
}

// a' = a + g^2;  p = -learning_rate_power;  delta = a'^p - a^p
// without multiply_linear_by_learning_rate:
//   l += g - delta / lr * w
//   w = (clamp(l, -l1, l1) - l) / ((a'^p + beta) / lr + 2 * l2)
// with it:
//   l += lr * g - delta * w
//   w = (clamp(l, -lr * l1, lr * l1) - l) / (a'^p + 2 * lr * l2 + beta)
template <class Rate, class V>
static inline void Step(const Ftrl& rule, const Rate& learning_rate,
                        const V& gradient, V* weights, V* slots) {
  V& accumulator = slots[0];
  V& linear = slots[1];
  const float l1 = rule.l1_regularization_strength;
  const float l2 = rule.l2_regularization_strength;
  const V old_power = FtrlPower(rule, accumulator);
  accumulator += gradient * gradient;
  const V power = FtrlPower(rule, accumulator);
  const V delta = power - old_power;
  if (rule.multiply_linear_by_learning_rate) {
    const Rate bound = learning_rate * l1;
    linear += learning_rate * gradient - delta * *weights;
    *weights = (Clamp(linear, -bound, bound) - linear) /
               (power + (2 * learning_rate * l2 + rule.beta));
  } else {
    linear += gradient - delta / learning_rate * *weights;
    *weights = (Clamp(linear, -l1, l1) - linear) /
               ((power + rule.beta) / learning_rate + 2 * l2);
  }
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_FTRL_H_
