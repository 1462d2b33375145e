#include "cc/core/optimizers/adagrad.h"

#include <cmath>

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeAdagrad(RuleText text) {
  RuleDescription<Adagrad> rule;
  Adagrad& formula = rule.formula;
  text.Read("initial_accumulator_value", &formula.initial_accumulator_value);
  text.Read("epsilon", &formula.epsilon);
  text.Require(formula.epsilon >= 0 && std::isfinite(formula.epsilon),
               "epsilon", "finite and not negative");
  // Else an element whose gradient is 0 would become 0 / 0.
  text.Require(formula.initial_accumulator_value >= 0 &&
                   std::isfinite(formula.initial_accumulator_value) &&
                   formula.initial_accumulator_value + formula.epsilon > 0,
               "initial_accumulator_value",
               "finite and positive (or 0 with a positive epsilon)");
  rule.slot_names = {"accumulators"};
  rule.slot_initial_values = {formula.initial_accumulator_value};
  rule.apply = &Kernels::adagrad;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
