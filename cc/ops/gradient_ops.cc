// What carries a gradient to a table that is no tf.Variable.
#include "absl/status/status.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

absl::Status TrainableRowsOfShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckRows(context, 1, 2));
  context->set_output(0, context->input(2));
  return absl::OkStatus();
}

absl::Status TrainableRowsShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  return TrainableRowsOfShape(context);
}

REGISTER_OP("Tfembed>TrainableRows")
    .Input("anchor: resource")
    .Input("keys: Tkey")
    .Input("rows: float")
    .Output("trainable_rows: float")
    .Attr("Tkey: {int64, string} = DT_INT64")
    .SetIsStateful()
    .SetShapeFn(TrainableRowsShape)
    .Doc(R"doc(
Hands `rows` [..., dim], looked up for `keys` [...], on unchanged. Its gradient
goes to `anchor`, any resource handle, as IndexedSlices of the keys.
)doc");

REGISTER_OP("Tfembed>TrainableRowsOf")
    .Input("anchor: float")
    .Input("keys: Tkey")
    .Input("rows: float")
    .Output("trainable_rows: float")
    .Attr("Tkey: {int64, string} = DT_INT64")
    .SetShapeFn(TrainableRowsOfShape)
    .Doc(R"doc(
As TrainableRows, with what a variable reads as `anchor`, whatever it is. So the
gradient goes to that variable, of which freezing can make a constant.
)doc");

}  // namespace
}  // namespace tfembed
