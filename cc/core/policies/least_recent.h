#ifndef TFEMBED_CORE_POLICIES_LEAST_RECENT_H_
#define TFEMBED_CORE_POLICIES_LEAST_RECENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cc/core/policies/eviction.h"
#include "cc/core/support/rule_text.h"

namespace tfembed {

// "least_recent seconds=0": the rows that were not written for the longest time
// go first. Notes the step of the last write, or with seconds=1 its second. The
// worth is minus the steps or seconds since then.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeLeastRecent(RuleText text);

}  // namespace tfembed

#endif  // TFEMBED_CORE_POLICIES_LEAST_RECENT_H_
