#ifndef TFEMBED_CORE_OPTIMIZERS_UPDATE_RULE_H_
#define TFEMBED_CORE_OPTIMIZERS_UPDATE_RULE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cc/core/optimizers/formula.h"
#include "cc/core/optimizers/rules.inc"
#include "cc/core/rows/rows.h"

namespace tfembed {

// The types of a list that has no commas: FormulaList<>() + A() + B() + ...
template <class... Formulas>
struct FormulaList {
  template <class Formula>
  FormulaList<Formulas..., Formula> operator+(Formula) const;

  using Variant = std::variant<Formulas...>;
};

// A rule's own parameters, for callers that do not apply the rule through
// UpdateRule but compile its Step() themselves.
#define TFEMBED_RULE(name, Type) +Type()
using AnyFormula = decltype(FormulaList<>()
#include "cc/core/optimizers/rules.inc"
                                )::Variant;

// How a row and its slots move for a summed gradient. Immutable; thread-safe.
//
// Written as text, "adagrad initial_accumulator_value=0.1 clip_weight_max=5":
// the rule's name, then name=value pairs in any order. Beside a rule's own
// parameters, all rules know
//   clip_gradient_min, clip_gradient_max   elementwise, before the update;
//   clip_weight_min, clip_weight_max       elementwise, after the update;
//   weight_decay                           w -= weight_decay * w, before it,
//   weight_decay_times_learning_rate (0|1)   or weight_decay * lr * w;
//   accumulate (0|1, default 1)            0: applied once per occurrence.
class UpdateRule {
 public:
  // InvalidArgument names the unknown rule or parameter and lists the known.
  static absl::StatusOr<std::unique_ptr<UpdateRule>> Parse(
      absl::string_view text);

  virtual ~UpdateRule() = default;

  virtual absl::string_view name() const = 0;
  virtual const std::vector<std::string>& slot_names() const = 0;
  virtual const std::vector<float>& slot_initial_values() const = 0;

  // The formula, which the compiled loops take.
  virtual AnyFormula formula() const = 0;
  virtual const CommonParameters& common() const = 0;

  bool accumulate() const { return common().accumulate; }

  // The slots that are one float a row.
  virtual SlotSet row_wise_slots() const = 0;

  // Whether each step moves all rows that a table has: those that it did not
  // look up by a gradient of 0.
  virtual bool moves_all_rows() const = 0;

  // InvalidArgument, "must be ...; got 0.", for one that the rule cannot take.
  virtual absl::Status CheckLearningRate(float learning_rate) const = 0;

  // Applies n gradients of `dim` floats, row-major, to n rows in their order. A
  // row may come several times.
  virtual void Apply(const MutableRow* rows, const float* gradients, int64_t n,
                     int64_t dim, float learning_rate) const = 0;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_UPDATE_RULE_H_
