#include "cc/core/optimizers/adagrad_momentum.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeAdagradMomentum(RuleText text) {
  RuleDescription<AdagradMomentum> rule;
  AdagradMomentum& formula = rule.formula;
  text.ReadFinite("momentum", &formula.momentum);
  text.Read("use_nesterov", &formula.use_nesterov);
  text.ReadPositive("exponent", &formula.exponent);
  text.ReadDecay("beta2", &formula.beta2);
  text.ReadPositive("epsilon", &formula.epsilon);
  rule.slot_names = {"accumulators", "momenta"};
  rule.slot_initial_values = {0, 0};
  rule.apply = &Kernels::adagrad_momentum;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
