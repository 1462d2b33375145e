#ifndef TFEMBED_CORE_STEP_GROUPED_UPDATE_H_
#define TFEMBED_CORE_STEP_GROUPED_UPDATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cc/core/optimizers/update_rule.h"
#include "cc/core/rows/rows.h"
#include "cc/core/step/id_bags.h"
#include "cc/core/support/executor.h"

namespace tfembed {

// The gradient of one feature's activations: that of bag b is at
// gradients + b * stride.
struct BagGradients {
  IdBags bags;
  const float* gradients = nullptr;
  int64_t stride = 0;  // In floats.
};

// The treatment of a row whose summed gradient has a NaN or an infinity.
enum class NonFinite {
  kSkip,    // Leave the row alone and count it.
  kRefuse,  // InvalidArgument before anything is changed.
  kAllow,   // Apply it, as TensorFlow does.
};

// One table's share of a step.
struct TableUpdate {
  RowSink* sink = nullptr;
  const UpdateRule* rule = nullptr;
  float learning_rate = 0;
  std::vector<BagGradients> features;  // All features of this table.
  int64_t nonfinite_rows = 0;          // Out: rows with such a sum.
  std::string name = {};               // For error messages, as "table 'user'".
};

// Tables that share a norm: the Euclidean norm of all their finite sums. If it
// is above `most`, the gradients are scaled down to it.
struct NormLimit {
  std::vector<int64_t> tables;  // Distinct, by number; each with one limit.
  float most = 0;
};

// Sums the gradient of each distinct id over all bags and features of its
// table, in the order of features, bags and ids, and applies each table's rule
// once per id (once per occurrence if the rule does not accumulate). The
// result does not depend on the number of threads. Everything is checked before
// anything is changed. REQUIRES: the rules of tables with a limit accumulate.
absl::Status GroupedUpdate(absl::Span<TableUpdate> tables, NonFinite nonfinite,
                           Executor* executor,
                           absl::Span<const NormLimit> limits = {});

// Sums without an update: distinct ids, ascending, and their summed gradients
// ([ids.size(), dim], row-major). InvalidArgument: at least 2^32 bags or ids.
struct SummedGradients {
  std::vector<int64_t> ids;
  std::vector<float> rows;
};
absl::StatusOr<SummedGradients> SumGradients(
    absl::Span<const BagGradients> features, int64_t dim, Executor* executor);

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_GROUPED_UPDATE_H_
