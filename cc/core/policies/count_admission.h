#ifndef TFEMBED_CORE_POLICIES_COUNT_ADMISSION_H_
#define TFEMBED_CORE_POLICIES_COUNT_ADMISSION_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cc/core/policies/admission.h"
#include "cc/core/support/rule_text.h"

namespace tfembed {

// "count seen=3": admits a key when it is seen for the third time. Exact, at 17
// to 22 bytes for each key that waits. A key that was admitted and then removed
// begins anew.
absl::StatusOr<std::unique_ptr<AdmissionPolicy>> MakeCountAdmission(
    RuleText text);

}  // namespace tfembed

#endif  // TFEMBED_CORE_POLICIES_COUNT_ADMISSION_H_
