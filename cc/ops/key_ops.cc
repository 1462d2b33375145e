// Ops that look at the keys of a table shard and at no row.
#include "absl/status/status.h"
#include "cc/ops/dtypes.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status KeysShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status ContainsShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  context->set_output(0, context->input(1));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableKeys")
    .Input("table: resource")
    .Output("keys: Tkey")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(KeysShape)
    .Doc(R"doc(
All `keys` [n] of the table, as of one moment and in no particular order. No
row is read or copied.
)doc");

REGISTER_OP("Tfembed>TableContains")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Output("exists: bool")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(ContainsShape)
    .Doc("Which of `keys`, of any shape, are in the table. No row is read.");

}  // namespace
}  // namespace tfembed
