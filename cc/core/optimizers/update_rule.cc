#include "cc/core/optimizers/update_rule.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/support/rule_text.h"

namespace tfembed {
namespace {

// Everything that describes an update rule but its formula.
struct RuleDescription {
  std::string name;
  std::vector<std::string> slot_names;
  std::vector<float> slot_initial_values;
  SlotSet row_wise_slots = 0;
  CommonParameters common;
  bool divides_by_learning_rate = false;
  bool moves_all_rows = false;
};

// Reads a rule's text for its formula, whose Read() is called once with it.
class RuleReader {
 public:
  explicit RuleReader(RuleText text) : text_(std::move(text)) {}

  // Overwrite *value where the text has the parameter.
  void Read(const char* parameter, bool* value) {
    text_.Read(parameter, value);
  }
  void Read(const char* parameter, float* value) {
    text_.Read(parameter, value);
  }

  // The same, of numbers that must be as they say.
  void ReadFinite(const char* parameter, float* value) {
    Read(parameter, value);
    Require(std::isfinite(*value), parameter, "finite");
  }
  void ReadPositive(const char* parameter, float* value) {
    Read(parameter, value);
    Require(*value > 0 && std::isfinite(*value), parameter,
            "finite and positive");
  }
  void ReadNotNegative(const char* parameter, float* value) {
    Read(parameter, value);
    Require(*value >= 0 && std::isfinite(*value), parameter,
            "finite and not negative");
  }
  void ReadDecay(const char* parameter, Decay* value) {
    double kept;
    if (!text_.Read(parameter, &kept)) return;
    Require(kept >= 0 && kept <= 1, parameter, "in [0, 1]");
    *value = Decay(kept);
  }
  void ReadDecayBelow1(const char* parameter, Decay* value) {
    double kept;
    if (!text_.Read(parameter, &kept)) return;
    Require(kept >= 0 && kept < 1, parameter, "in [0, 1)");
    *value = Decay(kept);
  }

  void Require(bool holds, const char* parameter, const char* allowed) {
    text_.Require(holds, parameter, allowed);
  }

  // Adds the rule's next slot.
  void AddSlot(const char* name, float initial_value) {
    rule_.slot_names.emplace_back(name);
    rule_.slot_initial_values.push_back(initial_value);
  }
  // The same, of one float a row.
  void AddRowWiseSlot(const char* name, float initial_value) {
    rule_.row_wise_slots |= SlotSet{1} << rule_.slot_names.size();
    AddSlot(name, initial_value);
  }

  // Says whether the formula divides by the learning rate; the default is no.
  void DividesByLearningRate(bool divides) {
    rule_.divides_by_learning_rate = divides;
  }

  // Says whether each step moves all rows of a table; the default is no.
  void MovesAllRows(bool moves) { rule_.moves_all_rows = moves; }

  // Reads the parameters that all rules share. InvalidArgument, the first one
  // of what is wrong.
  absl::StatusOr<RuleDescription> Finish() {
    CommonParameters& common = rule_.common;
    Read("clip_gradient_min", &common.clip_gradient_min);
    Read("clip_gradient_max", &common.clip_gradient_max);
    Require(common.clip_gradient_min <= common.clip_gradient_max,
            "clip_gradient_min", "at most clip_gradient_max");
    Read("clip_weight_min", &common.clip_weight_min);
    Read("clip_weight_max", &common.clip_weight_max);
    Require(common.clip_weight_min <= common.clip_weight_max, "clip_weight_min",
            "at most clip_weight_max");
    ReadFinite("weight_decay", &common.weight_decay);
    Read("weight_decay_times_learning_rate",
         &common.weight_decay_times_learning_rate);
    Read("accumulate", &common.accumulate);
    Require(!rule_.moves_all_rows || common.accumulate, "accumulate",
            "1 where all rows move in each step");
    const absl::Status status = text_.Finish();
    if (!status.ok()) return status;
    rule_.name = text_.name();
    return std::move(rule_);
  }

 private:
  RuleText text_;
  RuleDescription rule_;
};

// An update rule whose formula the member `kApply` of Kernels applies.
template <class Formula, ApplyFunction<Formula> Kernels::*kApply>
class FormulaRule final : public UpdateRule {
 public:
  static absl::StatusOr<std::unique_ptr<UpdateRule>> Make(RuleText text) {
    RuleReader reader(std::move(text));
    Formula formula;
    formula.Read(&reader);
    absl::StatusOr<RuleDescription> description = reader.Finish();
    if (!description.ok()) return description.status();
    return std::make_unique<FormulaRule>(formula, *std::move(description));
  }

  FormulaRule(const Formula& formula, RuleDescription description)
      : formula_(formula), description_(std::move(description)) {}

  absl::string_view name() const override { return description_.name; }
  const std::vector<std::string>& slot_names() const override {
    return description_.slot_names;
  }
  const std::vector<float>& slot_initial_values() const override {
    return description_.slot_initial_values;
  }
  AnyFormula formula() const override { return formula_; }
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
    (ActiveKernels().*kApply)(formula_, description_.common, block);
  }

 private:
  const Formula formula_;
  const RuleDescription description_;
};

struct KnownRule {
  const char* name;
  absl::StatusOr<std::unique_ptr<UpdateRule>> (*make)(RuleText text);
};

constexpr KnownRule kKnownRules[] = {
#define TFEMBED_RULE(name, Type) \
  {#name, &FormulaRule<Type, &Kernels::name>::Make},
#include "cc/core/optimizers/rules.inc"
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
