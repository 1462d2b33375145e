#include "cc/core/optimizers/adam.h"

#include <cmath>

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeAdam(RuleText text) {
  RuleDescription<Adam> rule;
  Adam& formula = rule.formula;
  bool lazy_adam = true;
  text.Read("lazy_adam", &lazy_adam);
  text.Require(lazy_adam, "lazy_adam",
               "1: updating every row in every step is not built yet");
  text.Read("beta_1", &formula.beta_1);
  text.Require(formula.beta_1 >= 0 && formula.beta_1 < 1, "beta_1",
               "in [0, 1)");
  text.Read("beta_2", &formula.beta_2);
  text.Require(formula.beta_2 >= 0 && formula.beta_2 < 1, "beta_2",
               "in [0, 1)");
  text.Read("epsilon", &formula.epsilon);
  text.Require(formula.epsilon > 0 && std::isfinite(formula.epsilon), "epsilon",
               "finite and positive");
  text.Read("sum_inside_sqrt", &formula.sum_inside_sqrt);
  rule.slot_names = {"momenta", "velocities"};
  rule.slot_initial_values = {0, 0};
  rule.apply = &Kernels::adam;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
