#ifndef TFEMBED_CORE_OPTIMIZERS_ANY_FORMULA_H_
#define TFEMBED_CORE_OPTIMIZERS_ANY_FORMULA_H_

#include <variant>

#include "cc/core/optimizers/rules.inc"

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

}  // namespace tfembed

#endif  // TFEMBED_CORE_OPTIMIZERS_ANY_FORMULA_H_
