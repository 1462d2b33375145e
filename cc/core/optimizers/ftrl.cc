#include "cc/core/optimizers/ftrl.h"

#include <cmath>

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {
namespace {

bool IsFiniteAndNotNegative(float x) { return x >= 0 && std::isfinite(x); }

}  // namespace

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeFtrl(RuleText text) {
  RuleDescription<Ftrl> rule;
  Ftrl& formula = rule.formula;
  text.Read("learning_rate_power", &formula.learning_rate_power);
  text.Require(IsFiniteAndNotNegative(-formula.learning_rate_power),
               "learning_rate_power", "finite and not positive");
  text.Read("l1_regularization_strength", &formula.l1_regularization_strength);
  text.Require(IsFiniteAndNotNegative(formula.l1_regularization_strength),
               "l1_regularization_strength", "finite and not negative");
  text.Read("l2_regularization_strength", &formula.l2_regularization_strength);
  text.Require(IsFiniteAndNotNegative(formula.l2_regularization_strength),
               "l2_regularization_strength", "finite and not negative");
  text.Read("beta", &formula.beta);
  text.Require(IsFiniteAndNotNegative(formula.beta), "beta",
               "finite and not negative");
  text.Read("initial_accumulator_value", &formula.initial_accumulator_value);
  text.Require(formula.initial_accumulator_value > 0 &&
                   std::isfinite(formula.initial_accumulator_value),
               "initial_accumulator_value", "finite and positive");
  text.Read("multiply_linear_by_learning_rate",
            &formula.multiply_linear_by_learning_rate);
  rule.slot_names = {"accumulators", "linears"};
  rule.slot_initial_values = {formula.initial_accumulator_value, 0};
  rule.apply = &Kernels::ftrl;
  rule.divides_by_learning_rate = !formula.multiply_linear_by_learning_rate;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
