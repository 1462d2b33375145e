#include "cc/ops/shapes.h"

#include "tensorflow/core/platform/errors.h"

namespace tfembed {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status CheckHandle(InferenceContext* context, int input) {
  ShapeHandle unused;
  return context->WithRank(context->input(input), 0, &unused);
}

absl::Status CheckRows(InferenceContext* context, int keys, int values) {
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(
      context->WithRankAtLeast(context->input(values), 1, &rows));
  ShapeHandle leading;
  TF_RETURN_IF_ERROR(context->Subshape(rows, 0, -1, &leading));
  ShapeHandle unused;
  return context->Merge(context->input(keys), leading, &unused);
}

absl::Status RowsShape(InferenceContext* context, ShapeHandle leading,
                       int64_t dim, ShapeHandle* rows) {
  return context->Concatenate(leading, context->Vector(dim), rows);
}

}  // namespace tfembed
