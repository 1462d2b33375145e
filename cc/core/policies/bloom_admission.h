#ifndef TFEMBED_CORE_POLICIES_BLOOM_ADMISSION_H_
#define TFEMBED_CORE_POLICIES_BLOOM_ADMISSION_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cc/core/policies/admission.h"
#include "cc/core/support/rule_text.h"

namespace tfembed {

// "bloom seen=3 capacity=1000000 error_rate=0.01": admits a key when it is seen
// for the third time, or earlier with a probability of at most error_rate while
// the table has seen no more than `capacity` different keys; never later.
//
// A counting Bloom filter with conservative update: a key raises only those of
// its counters that are the lowest. It has capacity * ln(1 / error_rate) /
// ln(2)^2 counters of a byte (9.6 bytes a key for 1 %) and never grows. Counts
// stay when a key was admitted: one that was removed is admitted again at once.
absl::StatusOr<std::unique_ptr<AdmissionPolicy>> MakeBloomAdmission(
    RuleText text);

}  // namespace tfembed

#endif  // TFEMBED_CORE_POLICIES_BLOOM_ADMISSION_H_
