// Ops that take packed batches apart.
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status SplitAlignedShape(InferenceContext* context) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &unused));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &unused));
  ShapeHandle sizes;
  TF_RETURN_IF_ERROR(context->Merge(
      context->input(1), context->Vector(context->num_outputs()), &sizes));
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->Vector(InferenceContext::kUnknownDim));
  }
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>SplitAligned")
    .Input("values: int64")
    .Input("sizes: int64")
    .Output("parts: N * int64")
    .Attr("N: int >= 1")
    .SetShapeFn(SplitAlignedShape)
    .Doc(R"doc(
The `parts` [sizes[i]] of `values` [n]. Each begins where the last one ends, but
at a multiple of 8 values: so all are aligned as TensorFlow wants them, and they
are views of `values` where that itself is aligned. What is between is padding.

A size below 0 and parts beyond the values are InvalidArgument.
)doc");

}  // namespace
}  // namespace tfembed
