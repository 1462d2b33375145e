#include "cc/core/optimizers/sgd.h"

#include "cc/core/optimizers/formula_rule.h"

namespace tfembed {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeSgd(RuleText text) {
  RuleDescription<Sgd> rule;
  rule.apply = &Kernels::sgd;
  return FinishRule(&text, rule);
}

}  // namespace tfembed
