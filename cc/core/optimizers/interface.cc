#include "cc/core/optimizers/interface.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/optimizers/formula_rule.h"
#include "cc/core/optimizers/rule_text.h"

namespace tfembed {
namespace {

struct KnownRule {
  const char* name;
  RuleMaker* make;
};

constexpr KnownRule kKnownRules[] = {
    {"sgd", &MakeSgd},
    {"adagrad", &MakeAdagrad},
    {"adagrad_momentum", &MakeAdagradMomentum},
    {"adam", &MakeAdam},
    {"ftrl", &MakeFtrl},
    {"momentum", &MakeMomentum},
    {"rms_prop", &MakeRmsProp},
    {"centered_rms_prop", &MakeCenteredRmsProp},
    {"proximal_adagrad", &MakeProximalAdagrad},
    {"adadelta", &MakeAdadelta},
    {"lion", &MakeLion},
    {"yogi", &MakeYogi},
    {"row_wise_adagrad", &MakeRowWiseAdagrad},
};

}  // namespace

absl::StatusOr<std::unique_ptr<UpdateRule>> UpdateRule::Parse(
    absl::string_view text) {
  absl::StatusOr<RuleText> parsed = RuleText::Parse(text);
  if (!parsed.ok()) return parsed.status();
  std::vector<std::string> names;
  for (const KnownRule& known : kKnownRules) {
    if (parsed->name() == known.name) return known.make(*std::move(parsed));
    names.emplace_back(known.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Unknown update rule `", parsed->name(), "`; the rules are ",
                   absl::StrJoin(names, ", "), "."));
}

}  // namespace tfembed
