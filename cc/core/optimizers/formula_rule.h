#ifndef TFEMBED_CORE_OPTIMIZERS_FORMULA_RULE_H_
#define TFEMBED_CORE_OPTIMIZERS_FORMULA_RULE_H_

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cc/core/optimizers/interface.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/support/rule_text.h"

namespace tfembed {

// Everything that describes an update rule but its formula.
template <class Formula>
struct RuleDescription {
  std::string name;
  std::vector<std::string> slot_names;
  std::vector<float> slot_initial_values;
  Formula formula;
  CommonParameters common;
  ApplyFunction<Formula> Kernels::*apply;
  bool divides_by_learning_rate = false;
  SlotSet row_wise_slots = 0;
  bool moves_all_rows = false;
};

// An update rule that applies a formula of the SIMD kernels.
template <class Formula>
class FormulaRule final : public UpdateRule {
 public:
  explicit FormulaRule(RuleDescription<Formula> description)
      : description_(std::move(description)) {}

  absl::string_view name() const override { return description_.name; }
  const std::vector<std::string>& slot_names() const override {
    return description_.slot_names;
  }
  const std::vector<float>& slot_initial_values() const override {
    return description_.slot_initial_values;
  }
  AnyFormula formula() const override { return description_.formula; }
  const CommonParameters& common() const override {
    return description_.common;
  }
  SlotSet row_wise_slots() const override {
    return description_.row_wise_slots;
  }
  bool moves_all_rows() const override { return description_.moves_all_rows; }

  absl::Status CheckLearningRate(float learning_rate) const override {
    if (std::isfinite(learning_rate) &&
        (learning_rate > 0 || !description_.divides_by_learning_rate)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "must be finite",
        description_.divides_by_learning_rate
            ? absl::StrCat(" and above 0, since ", name(), " divides by it")
            : "",
        "; got ", learning_rate, "."));
  }

  void Apply(const MutableRow* rows, const float* gradients, int64_t n,
             int64_t dim, float learning_rate) const override {
    const ApplyBlock block = {rows, gradients, n, dim, learning_rate};
    (ActiveKernels().*description_.apply)(description_.formula,
                                          description_.common, block);
  }

 private:
  const RuleDescription<Formula> description_;
};

// Reads what every rule knows.
void ReadCommon(RuleText* text, CommonParameters* common);

// Reads the common parameters too; the caller read and checked its own.
template <class Formula>
absl::StatusOr<std::unique_ptr<UpdateRule>> FinishRule(
    RuleText* text, RuleDescription<Formula> description) {
  ReadCommon(text, &description.common);
  text->Require(!description.moves_all_rows || description.common.accumulate,
                "accumulate", "1 where all rows move in each step");
  const absl::Status status = text->Finish();
  if (!status.ok()) return status;
  description.name = text->name();
  return std::unique_ptr<UpdateRule>(
      std::make_unique<FormulaRule<Formula>>(std::move(description)));
}

// Makes a rule from its text: one function per rule, in the rule's .cc file.
using RuleMaker = absl::StatusOr<std::unique_ptr<UpdateRule>>(RuleText text);
#define TFEMBED_RULE(name, Type) RuleMaker Make##Type;
#include "cc/core/optimizers/rules.inc"

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_FORMULA_RULE_H_
