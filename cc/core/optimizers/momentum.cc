#include "cc/core/optimizers/momentum.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeMomentum(RuleText text) {
  RuleDescription<Momentum> rule;
  Momentum& formula = rule.formula;
  text.ReadFinite("momentum", &formula.momentum);
  text.Read("use_nesterov", &formula.use_nesterov);
  rule.slot_names = {"momenta"};
  rule.slot_initial_values = {0};
  rule.apply = &Kernels::momentum;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
