#ifndef TFEMBED_CORE_TESTING_RULE_ORACLE_H_
#define TFEMBED_CORE_TESTING_RULE_ORACLE_H_

#include <string>
#include <vector>

#include "cc/core/testing/near.h"

namespace tfembed {

// One element of a row: its value and slots.
struct ElementState {
  Expected value;
  std::vector<Expected> slots;
};

// Applies a rule, given as text, to one element for one step, in float64. Its
// formulas are written down anew from the rules' specification.
ElementState StepElement(const std::string& rule_text, double learning_rate,
                         double gradient, double value,
                         const std::vector<double>& slots);

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_RULE_ORACLE_H_
