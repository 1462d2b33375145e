#ifndef TFEMBED_XLA_DISTINCT_ROWS_H_
#define TFEMBED_XLA_DISTINCT_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "cc/core/mutable_row.h"
#include "cc/core/optimizers/interface.h"

// Updates of rows that lie in plain tensors, on one thread.
namespace tfembed {

// The rows of a stack and their slots.
struct RowTensors {
  int64_t rows = 0;
  int64_t width = 0;
  float* values = nullptr;
  std::vector<float*> slots;
  SlotSet row_wise = 0;  // The slots of one float a row.
};

// Is told of a row whose gradient has a NaN or an infinity; says whether it is
// updated nevertheless.
using OnNonfinite = absl::FunctionRef<bool(int64_t row)>;

// Sums gradients [n, width] by id and applies the rule once to each row. An id
// outside of [0, rows) has no row.
void UpdateDistinctRows(const UpdateRule& rule, float learning_rate,
                        const int32_t* ids, const float* gradients, int64_t n,
                        OnNonfinite on_nonfinite, RowTensors* tensors);

// Applies each gradient by itself, in order.
void UpdateInOrder(const UpdateRule& rule, float learning_rate,
                   const int32_t* ids, const float* gradients, int64_t n,
                   OnNonfinite on_nonfinite, RowTensors* tensors);

}  // namespace tfembed

#endif  // TFEMBED_XLA_DISTINCT_ROWS_H_
