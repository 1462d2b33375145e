#include "cc/core/optimizers/lion.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeLion(RuleText text) {
  RuleDescription<Lion> rule;
  Lion& formula = rule.formula;
  bool lazy_lion = true;
  text.Read("lazy_lion", &lazy_lion);
  rule.moves_all_rows = !lazy_lion;
  text.ReadDecayBelow1("beta_1", &formula.beta_1);
  text.ReadDecayBelow1("beta_2", &formula.beta_2);
  rule.slot_names = {"momenta"};
  rule.slot_initial_values = {0};
  rule.apply = &Kernels::lion;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
