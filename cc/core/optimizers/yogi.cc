#include "cc/core/optimizers/yogi.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeYogi(RuleText text) {
  RuleDescription<Yogi> rule;
  Yogi& formula = rule.formula;
  text.ReadDecayBelow1("beta_1", &formula.beta_1);
  text.ReadDecayBelow1("beta_2", &formula.beta_2);
  text.ReadPositive("epsilon", &formula.epsilon);
  text.ReadNotNegative("l1_regularization_strength",
                       &formula.l1_regularization_strength);
  text.ReadNotNegative("l2_regularization_strength",
                       &formula.l2_regularization_strength);
  text.ReadNotNegative("initial_accumulator_value",
                       &formula.initial_accumulator_value);
  rule.slot_names = {"v", "m"};
  rule.slot_initial_values = {formula.initial_accumulator_value, 0};
  rule.apply = &Kernels::yogi;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
