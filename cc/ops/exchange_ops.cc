// Ops between the workers of a job, over TensorFlow's collective transport.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/signatures.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status ChannelShape(InferenceContext* context) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &unused));
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

absl::Status PartsShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  ShapeHandle unused;
  std::vector<ShapeHandle> shapes;
  for (const char* input : {"parts", "sizes"}) {
    TF_RETURN_IF_ERROR(context->input(input, &shapes));
    for (const ShapeHandle& shape : shapes) {
      TF_RETURN_IF_ERROR(context->WithRank(shape, 1, &unused));
    }
  }
  TF_RETURN_IF_ERROR(context->input("error", &shapes));
  TF_RETURN_IF_ERROR(context->WithRank(shapes[0], 0, &unused));
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->Vector(InferenceContext::kUnknownDim));
  }
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>ExchangeChannel")
    .Input("label: string")
    .Output("channel: resource")
    .Attr("peers: list(string) >= 1")
    .Attr("worker: int >= 0")
    .Attr("seconds: float")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ChannelShape))
    .Doc(R"doc(
Makes this worker's end of the channel `label` [] between the devices `peers`, one
of each worker; this one is peers[worker]. All workers make their channels with
the same labels and peers. Its exchanges wait for the others for up to `seconds`.
The last handle frees it.
)doc");

REGISTER_OP("Tfembed>ExchangeParts")
    .Input("channel: resource")
    .Input("parts: N * T")
    .Input("sizes: int64")
    .Input("error: string")
    .Output("received: N * T")
    .Attr("N: int >= 1")
    .Attr("T: {int8, uint8}")
    .Attr("knows_sizes: bool")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(PartsShape))
    .Doc(R"doc(
Sends parts[i], of any size, to worker i of the channel; received[i] is its part
for this one. All workers run the exchanges of a channel in the same order. With
`knows_sizes` the sizes [N] of what is received are given, which saves the workers
a message; else `sizes` [0] is not read. If `error` [] of any worker is not empty,
the op fails on all of them with that text, and later exchanges work. A worker that
died or does not come in time fails the others, and all later exchanges.
)doc");

}  // namespace
}  // namespace tfembed
