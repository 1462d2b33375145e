// Ops by which update rules outside of the core move rows.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/dtypes.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status LookupTrainedShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  int64_t width;
  TF_RETURN_IF_ERROR(context->GetAttr("width", &width));
  if (width < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`width` must not be negative; got ", width, "."));
  }
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(RowsShape(context, context->input(1), width, &rows));
  context->set_output(0, rows);
  return absl::OkStatus();
}

absl::Status WriteTrainedShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  return CheckRows(context, 1, 2);
}

REGISTER_OP("Tfembed>TableLookupTrained")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Output("rows: float")
    .Attr("width: int")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(LookupTrainedShape)
    .Doc(R"doc(
Value and slots of `keys` [...] as floats, `rows` [..., width], where width is
dim and the floats of all slots; of a missing key the initial ones, and nothing is
inserted.
)doc");

REGISTER_OP("Tfembed>TableWriteTrained")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Input("rows: float")
    .Attr("add: bool = false")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WriteTrainedShape)
    .Doc(R"doc(
Writes `rows` [..., dim + floats of all slots] as value and slots of `keys` [...],
or with `add` adds to them. A missing key is inserted with its initial row and
slots first.
)doc");

}  // namespace
}  // namespace tfembed
