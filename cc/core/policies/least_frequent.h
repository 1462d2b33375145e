#ifndef TFEMBED_CORE_POLICIES_LEAST_FREQUENT_H_
#define TFEMBED_CORE_POLICIES_LEAST_FREQUENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cc/core/policies/eviction.h"
#include "cc/core/support/rule_text.h"

namespace tfembed {

// "least_frequent": the rows that were written least often go first. Notes the
// batches of writes that a row was in, once each, up to 2^32 - 1; that is its
// worth.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeLeastFrequent(
    RuleText text);

}  // namespace tfembed

#endif  // TFEMBED_CORE_POLICIES_LEAST_FREQUENT_H_
