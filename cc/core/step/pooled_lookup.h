#ifndef TFEMBED_CORE_STEP_POOLED_LOOKUP_H_
#define TFEMBED_CORE_STEP_POOLED_LOOKUP_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/rows/rows.h"
#include "cc/core/step/id_bags.h"
#include "cc/core/support/executor.h"

namespace tfembed {

// One feature of a grouped lookup.
struct PooledFeature {
  const RowSource* source = nullptr;
  IdBags bags;
  float* activations = nullptr;  // Bag b goes to activations + b * stride.
  int64_t stride = 0;            // In floats, at least source->dim().
};

// Looks up and combines the bags of all features, split over the executor's
// threads by feature and range of bags. On an error (an id that cannot be in
// its table) the activations are unspecified.
absl::Status PooledLookup(absl::Span<const PooledFeature> features,
                          Executor* executor);

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_POOLED_LOOKUP_H_
