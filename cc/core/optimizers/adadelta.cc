#include "cc/core/optimizers/adadelta.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeAdadelta(RuleText text) {
  RuleDescription<Adadelta> rule;
  Adadelta& formula = rule.formula;
  text.ReadDecayBelow1("rho", &formula.rho);
  text.ReadPositive("epsilon", &formula.epsilon);
  rule.slot_names = {"accumulators", "updates"};
  rule.slot_initial_values = {0, 0};
  rule.apply = &Kernels::adadelta;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
