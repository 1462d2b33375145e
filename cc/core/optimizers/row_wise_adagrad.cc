#include "cc/core/optimizers/row_wise_adagrad.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRowWiseAdagrad(RuleText text) {
  RuleDescription<RowWiseAdagrad> rule;
  RowWiseAdagrad& formula = rule.formula;
  text.ReadNotNegative("initial_accumulator_value",
                       &formula.initial_accumulator_value);
  text.ReadPositive("epsilon", &formula.epsilon);
  rule.slot_names = {"accumulators"};
  rule.slot_initial_values = {formula.initial_accumulator_value};
  rule.row_wise_slots = 1;
  rule.apply = &Kernels::row_wise_adagrad;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
