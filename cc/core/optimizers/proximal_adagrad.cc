#include "cc/core/optimizers/proximal_adagrad.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeProximalAdagrad(RuleText text) {
  RuleDescription<ProximalAdagrad> rule;
  ProximalAdagrad& formula = rule.formula;
  text.ReadNotNegative("l1_regularization_strength",
                       &formula.l1_regularization_strength);
  text.ReadNotNegative("l2_regularization_strength",
                       &formula.l2_regularization_strength);
  text.ReadPositive("initial_accumulator_value",
                    &formula.initial_accumulator_value);
  rule.slot_names = {"accumulators"};
  rule.slot_initial_values = {formula.initial_accumulator_value};
  rule.apply = &Kernels::proximal_adagrad;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
