#include "cc/core/optimizers/centered_rms_prop.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeCenteredRmsProp(RuleText text) {
  RuleDescription<CenteredRmsProp> rule;
  CenteredRmsProp& formula = rule.formula;
  text.ReadDecayBelow1("rho", &formula.rho);
  text.ReadFinite("momentum", &formula.momentum);
  text.ReadPositive("epsilon", &formula.epsilon);
  rule.slot_names = {"ms", "mom", "mg"};
  rule.slot_initial_values = {0, 0, 0};
  rule.apply = &Kernels::centered_rms_prop;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
