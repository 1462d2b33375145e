#ifndef TFEMBED_OPS_SHAPES_H_
#define TFEMBED_OPS_SHAPES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfembed {

// Refuses a table handle, input `input`, that is no scalar.
absl::Status CheckHandle(tensorflow::shape_inference::InferenceContext* context,
                         int input);

// Refuses [..., dim] values, input `values`, whose leading dimensions cannot be
// those of the keys, input `keys`.
absl::Status CheckRows(tensorflow::shape_inference::InferenceContext* context,
                       int keys, int values);

// The shape [leading..., dim].
absl::Status RowsShape(tensorflow::shape_inference::InferenceContext* context,
                       tensorflow::shape_inference::ShapeHandle leading,
                       int64_t dim,
                       tensorflow::shape_inference::ShapeHandle* rows);

}  // namespace tfembed

#endif  // TFEMBED_OPS_SHAPES_H_
