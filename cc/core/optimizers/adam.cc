#include "cc/core/optimizers/adam.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeAdam(RuleText text) {
  RuleDescription<Adam> rule;
  Adam& formula = rule.formula;
  bool lazy_adam = true;
  text.Read("lazy_adam", &lazy_adam);
  rule.moves_all_rows = !lazy_adam;
  text.ReadDecayBelow1("beta_1", &formula.beta_1);
  text.ReadDecayBelow1("beta_2", &formula.beta_2);
  text.ReadPositive("epsilon", &formula.epsilon);
  text.Read("sum_inside_sqrt", &formula.sum_inside_sqrt);
  rule.slot_names = {"momenta", "velocities"};
  rule.slot_initial_values = {0, 0};
  rule.apply = &Kernels::adam;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
