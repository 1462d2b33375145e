// Ops that read a saved table chunk by chunk.
#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status ReadChunkShape(InferenceContext* context) {
  ShapeHandle unused;
  for (int i = 0; i < 3; ++i) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &unused));
  }
  const auto n = context->UnknownDim();
  context->set_output(0, context->Vector(n));
  context->set_output(1, context->Matrix(n, context->UnknownDim()));
  context->set_output(2, context->Scalar());
  return absl::OkStatus();
}

absl::Status ReadWaitingShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(ReadChunkShape(context));
  context->set_output(1, context->Vector(context->UnknownDim()));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableReadChunk")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("chunk: int64")
    .Output("keys: Tkey")
    .Output("full_rows: float")
    .Output("num_chunks: int64")
    .Attr("Tkey: {int64, string} = DT_INT64")
    .Attr("tensor_name: string")
    .Attr("load_slots: bool = true")
    .SetIsStateful()
    .SetShapeFn(ReadChunkShape)
    .Doc(R"doc(
Chunk number `chunk` of a saved table as `table` imports it: `keys` [n], int32
ones widened, and `full_rows` as in `Tfembed>TableImport`, with the saved slots
that the table has, the others initial. Changes nothing.
)doc");

REGISTER_OP("Tfembed>TableReadWaiting")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("chunk: int64")
    .Output("keys: Tkey")
    .Output("seen: int32")
    .Output("num_chunks: int64")
    .Attr("Tkey: {int64, string} = DT_INT64")
    .Attr("tensor_name: string")
    .SetIsStateful()
    .SetShapeFn(ReadWaitingShape)
    .Doc(R"doc(
The same of the keys [n] that waited for admission when the table was saved, and
in how many steps each had been `seen` [n]. Where none did, chunk 0 is empty.
)doc");

}  // namespace
}  // namespace tfembed
