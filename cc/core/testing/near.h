#ifndef TFEMBED_CORE_TESTING_NEAR_H_
#define TFEMBED_CORE_TESTING_NEAR_H_

#include <cmath>

#include "gtest/gtest.h"

namespace tfembed {

// A float64 sum and the sum of its absolute terms, against which a float32
// result is judged.
struct Expected {
  double value = 0;
  double terms = 0;

  void Add(double term) {
    value += term;
    terms += std::fabs(term);
  }
  void Multiply(double factor) {
    value *= factor;
    terms *= std::fabs(factor);
  }
};

inline testing::AssertionResult IsNear(float actual, const Expected& expected) {
  const double error = std::fabs(actual - expected.value);
  if (error <= 1e-5 * expected.terms + 1e-7) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << actual << " is " << error << " away from " << expected.value;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_NEAR_H_
