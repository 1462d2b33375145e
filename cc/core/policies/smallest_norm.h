#ifndef TFEMBED_CORE_POLICIES_SMALLEST_NORM_H_
#define TFEMBED_CORE_POLICIES_SMALLEST_NORM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cc/core/policies/eviction.h"
#include "cc/core/support/rule_text.h"

namespace tfembed {

// "smallest_norm": the rows of the smallest Euclidean norm go first. Notes
// nothing. The worth is the norm; that of a row with a NaN is -1.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeSmallestNorm(RuleText text);

}  // namespace tfembed

#endif  // TFEMBED_CORE_POLICIES_SMALLEST_NORM_H_
