#include "cc/core/optimizers/interface.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/optimizers/formula_rule.h"
#include "cc/core/support/rule_text.h"

namespace tfembed {
namespace {

struct KnownRule {
  const char* name;
  RuleMaker* make;
};

constexpr KnownRule kKnownRules[] = {
#define TFEMBED_RULE(name, Type) {#name, &Make##Type},
#include "cc/core/optimizers/rules.inc"
};

}  // namespace

void ReadCommon(RuleText* text, CommonParameters* common) {
  text->Read("clip_gradient_min", &common->clip_gradient_min);
  text->Read("clip_gradient_max", &common->clip_gradient_max);
  text->Require(common->clip_gradient_min <= common->clip_gradient_max,
                "clip_gradient_min", "at most clip_gradient_max");
  text->Read("clip_weight_min", &common->clip_weight_min);
  text->Read("clip_weight_max", &common->clip_weight_max);
  text->Require(common->clip_weight_min <= common->clip_weight_max,
                "clip_weight_min", "at most clip_weight_max");
  text->Read("weight_decay", &common->weight_decay);
  text->Require(std::isfinite(common->weight_decay), "weight_decay", "finite");
  text->Read("weight_decay_times_learning_rate",
             &common->weight_decay_times_learning_rate);
  text->Read("accumulate", &common->accumulate);
}

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
