#include "cc/core/optimizers/rms_prop.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRmsProp(RuleText text) {
  RuleDescription<RmsProp> rule;
  RmsProp& formula = rule.formula;
  text.ReadDecayBelow1("rho", &formula.rho);
  text.ReadFinite("momentum", &formula.momentum);
  text.ReadPositive("epsilon", &formula.epsilon);
  rule.slot_names = {"ms", "mom"};
  rule.slot_initial_values = {0, 0};
  rule.apply = &Kernels::rms_prop;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
