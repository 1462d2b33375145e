#ifndef TFEMBED_OPS_SIGNATURES_H_
#define TFEMBED_OPS_SIGNATURES_H_

#include <cstdint>
#include <new>

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

// What the signatures of several ops have in common: dtypes and shapes.

// The dtypes of keys and values; which of them go together, tfembed/tables
// says.
#define TFEMBED_KEY_DTYPES "{int64, int32, string}"
#define TFEMBED_VALUE_DTYPES \
  "{float, half, bfloat16, double, int8, int32, int64, bool}"
#define TFEMBED_KEYS_ATTR "Tkey: " TFEMBED_KEY_DTYPES
#define TFEMBED_VALUES_ATTR "Tvalue: " TFEMBED_VALUE_DTYPES

namespace tfembed {

// A shape function that fails where the system refuses it memory: nobody above
// it catches what it throws. Without words that takes none.
template <class ShapeFn>
auto WithinMemory(ShapeFn shape) {
  return [shape](tensorflow::shape_inference::InferenceContext* context)
             -> absl::Status {
    try {
      return shape(context);
    } catch (const std::bad_alloc&) {
      return absl::Status(absl::StatusCode::kResourceExhausted, "");
    }
  };
}

// Refuses a table handle, input `input`, that is no scalar.
inline absl::Status CheckHandle(
    tensorflow::shape_inference::InferenceContext* context, int input) {
  tensorflow::shape_inference::ShapeHandle unused;
  return context->WithRank(context->input(input), 0, &unused);
}

// Refuses [..., dim] values, input `values`, whose leading dimensions cannot be
// those of the keys, input `keys`.
inline absl::Status CheckRows(
    tensorflow::shape_inference::InferenceContext* context, int keys,
    int values) {
  tensorflow::shape_inference::ShapeHandle rows;
  TF_RETURN_IF_ERROR(
      context->WithRankAtLeast(context->input(values), 1, &rows));
  tensorflow::shape_inference::ShapeHandle leading;
  TF_RETURN_IF_ERROR(context->Subshape(rows, 0, -1, &leading));
  tensorflow::shape_inference::ShapeHandle unused;
  return context->Merge(context->input(keys), leading, &unused);
}

// The shape [leading..., dim].
inline absl::Status RowsShape(
    tensorflow::shape_inference::InferenceContext* context,
    tensorflow::shape_inference::ShapeHandle leading, int64_t dim,
    tensorflow::shape_inference::ShapeHandle* rows) {
  return context->Concatenate(leading, context->Vector(dim), rows);
}

}  // namespace tfembed

#endif  // TFEMBED_OPS_SIGNATURES_H_
