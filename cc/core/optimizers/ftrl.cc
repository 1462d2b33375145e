#include "cc/core/optimizers/ftrl.h"

#include <cmath>

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {
absl::StatusOr<std::unique_ptr<UpdateRule>> MakeFtrl(RuleText text) {
  RuleDescription<Ftrl> rule;
  Ftrl& formula = rule.formula;
  text.Read("learning_rate_power", &formula.learning_rate_power);
  text.Require(formula.learning_rate_power <= 0 &&
                   std::isfinite(formula.learning_rate_power),
               "learning_rate_power", "finite and not positive");
  text.ReadNotNegative("l1_regularization_strength",
                       &formula.l1_regularization_strength);
  text.ReadNotNegative("l2_regularization_strength",
                       &formula.l2_regularization_strength);
  text.ReadNotNegative("beta", &formula.beta);
  text.ReadPositive("initial_accumulator_value",
                    &formula.initial_accumulator_value);
  text.Read("multiply_linear_by_learning_rate",
            &formula.multiply_linear_by_learning_rate);
  rule.slot_names = {"accumulators", "linears"};
  rule.slot_initial_values = {formula.initial_accumulator_value, 0};
  rule.apply = &Kernels::ftrl;
  rule.divides_by_learning_rate = !formula.multiply_linear_by_learning_rate;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
