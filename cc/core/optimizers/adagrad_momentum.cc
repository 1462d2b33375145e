#include "cc/core/optimizers/adagrad_momentum.h"

#include <cmath>

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeAdagradMomentum(RuleText text) {
  RuleDescription<AdagradMomentum> rule;
  AdagradMomentum& formula = rule.formula;
  text.Read("momentum", &formula.momentum);
  text.Require(std::isfinite(formula.momentum), "momentum", "finite");
  text.Read("use_nesterov", &formula.use_nesterov);
  text.Read("exponent", &formula.exponent);
  text.Require(formula.exponent > 0 && std::isfinite(formula.exponent),
               "exponent", "finite and positive");
  text.Read("beta2", &formula.beta2);
  text.Require(formula.beta2 >= 0 && formula.beta2 <= 1, "beta2", "in [0, 1]");
  text.Read("epsilon", &formula.epsilon);
  text.Require(formula.epsilon > 0 && std::isfinite(formula.epsilon), "epsilon",
               "finite and positive");
  rule.slot_names = {"accumulators", "momenta"};
  rule.slot_initial_values = {0, 0};
  rule.apply = &Kernels::adagrad_momentum;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
