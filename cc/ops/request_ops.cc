// Ops on rows that others own: a worker asks each owner once a step for the
// rows of all its features, and sends it the summed gradients of these. All
// that goes between them is packed into one tensor of bytes, a message, for
// each owner and direction (cc/core/step/packed_request.h).
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/feature_shapes.h"
#include "cc/ops/signatures.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

// Who owns the rows of a worker's tables: the attributes of all its ops.
#define TFEMBED_OWNER_ATTRS               \
  .Attr("P: int >= 1")                    \
      .Attr("num_shards: list(int) >= 1") \
      .Attr("owners: list(int) >= 1")     \
      .Attr("num_rows: list(int) >= 1")

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Lists of messages are vectors.
absl::Status CheckMessages(InferenceContext* context, const char* name) {
  std::vector<ShapeHandle> messages;
  TF_RETURN_IF_ERROR(context->input(name, &messages));
  ShapeHandle unused;
  for (ShapeHandle message : messages) {
    TF_RETURN_IF_ERROR(context->WithRank(message, 1, &unused));
  }
  return absl::OkStatus();
}

absl::Status SetMessages(InferenceContext* context, int count) {
  for (int i = 0; i < count; ++i) {
    context->set_output(i, context->Vector(InferenceContext::kUnknownDim));
  }
  return absl::OkStatus();
}

absl::Status RequestRowsShape(InferenceContext* context) {
  FeatureShapes features;
  TF_RETURN_IF_ERROR(ReadFeatureShapes(context, &features));
  TF_RETURN_IF_ERROR(CheckMessages(context, "shards"));
  int owners;
  TF_RETURN_IF_ERROR(context->GetAttr("P", &owners));
  for (size_t f = 0; f < features.ids.size(); ++f) {
    context->set_output(owners + f, features.ids[f]);
  }
  return SetMessages(context, owners);
}

absl::Status ServeRowsShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckMessages(context, "requests"));
  return SetMessages(context, context->num_outputs());
}

absl::Status CombineRowsShape(InferenceContext* context) {
  FeatureShapes features;
  TF_RETURN_IF_ERROR(ReadFeatureShapes(context, &features));
  TF_RETURN_IF_ERROR(CheckMessages(context, "requests"));
  TF_RETURN_IF_ERROR(CheckMessages(context, "answers"));
  SetActivations(context, features);
  return absl::OkStatus();
}

absl::Status SumRowGradientsShape(InferenceContext* context) {
  FeatureShapes features;
  TF_RETURN_IF_ERROR(ReadFeatureShapes(context, &features));
  TF_RETURN_IF_ERROR(CheckGradientShapes(context, features));
  TF_RETURN_IF_ERROR(CheckMessages(context, "requests"));
  return SetMessages(context, context->num_outputs());
}

absl::Status TrainRowsShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckMessages(context, "requests"));
  TF_RETURN_IF_ERROR(CheckMessages(context, "sums"));
  int64_t tables;
  TF_RETURN_IF_ERROR(context->GetAttr("T", &tables));
  TF_RETURN_IF_ERROR(CheckLearningRates(context, tables));
  context->set_output(0, context->Vector(tables));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>RequestRows")
TFEMBED_FEATURE_INPUTS.Input("shards: F * int32")
    .Output("requests: P * int8")
    .Output("places: F * int64") TFEMBED_FEATURE_ATTRS TFEMBED_OWNER_ATTRS
    .Attr("repeats: list(bool) >= 1")
    .Attr("wire: {float, bfloat16, half} = DT_FLOAT")
    .Attr("sender: string = ''")
    .SetShapeFn(WithinMemory(RequestRowsShape))
    .Doc(R"doc(
Packs the distinct ids of all features, which are as for GroupedLookup, into one
request for each of P owners. Table t has `num_shards`[t] shards; `owners` has
their owners, table by table. A shard is `shards`, [n] beside the ids of a
feature; where they are [0], it is floormod(id, shards). Tables with a fixed
vocabulary have `num_rows`[t] rows, others -1: an id outside is InvalidArgument here,
and a shard has row id / shards. `places` [n] say for each id which of its table's
rows it is, -1 for ids that are pruned. Each occurrence of an id of a table that
`repeats` has a place of its own. Rows and their gradients travel as `wire`. With a
`sender`, an error goes to all owners, and from there to all workers, in place of
the requests.
)doc");

REGISTER_OP("Tfembed>ServeRows")
    .Input("tables: T * resource")
    .Input("requests: N * int8")
    .Output("answers: N * int8")
    .Attr("T: int >= 1")
    .Attr("N: int >= 1")
    .Attr("dims: list(int) >= 1")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ServeRowsShape))
    .Doc(R"doc(
Reads the rows that the `requests` of N workers ask for. `tables` are those of this
owner, tf.Variables or tables of TableCreate, in the order of RequestRows: table by
table, shard by shard. InvalidArgument where a request is damaged or of other
tables; an error that a worker sent in its place is this op's.
)doc");

REGISTER_OP("Tfembed>CombineRows")
    .Input("requests: P * int8")
    .Input("answers: P * int8") TFEMBED_FEATURE_INPUTS
    .Output("activations: F * float") TFEMBED_FEATURE_ATTRS TFEMBED_OWNER_ATTRS
    .SetShapeFn(WithinMemory(CombineRowsShape))
    .Doc(R"doc(
Combines the rows that all owners sent to the activations of GroupedLookup. The
inputs are those of RequestRows, with its `places` as `ids`, and its `requests`.
)doc");

REGISTER_OP("Tfembed>SumRowGradients")
    .Input("requests: P * int8") TFEMBED_FEATURE_INPUTS
    .Input("gradients: F * float")
    .Output("sums: P * int8") TFEMBED_FEATURE_ATTRS TFEMBED_OWNER_ATTRS
    .Attr("table_names: list(string) >= 1")
    .Attr("nonfinite: {'skip', 'refuse', 'allow'} = 'skip'")
    .Attr("sender: string = ''")
    .SetShapeFn(WithinMemory(SumRowGradientsShape))
    .Doc(R"doc(
Sums the gradients of the activations by row, for each owner. The inputs are as for
CombineRows. With nonfinite "refuse", a sum with a NaN or an infinity is
InvalidArgument, before anything is sent. `sender` is as for RequestRows.
)doc");

REGISTER_OP("Tfembed>TrainRows")
    .Input("tables: T * resource")
    .Input("slots: S * resource")
    .Input("requests: N * int8")
    .Input("sums: N * int8")
    .Input("learning_rates: float")
    .Output("nonfinite_rows: int64")
    .Attr("T: int >= 1")
    .Attr("S: int >= 0")
    .Attr("N: int >= 1")
    .Attr("dims: list(int) >= 1")
    .Attr("rules: string")
    .Attr("table_names: list(string) = []")
    .Attr("nonfinite: {'skip', 'refuse', 'allow'} = 'skip'")
    .Attr("norm_limits: list(float) = []")
    .Attr("norm_groups: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(TrainRowsShape))
    .Doc(R"doc(
Trains the rows of this owner by the `sums` of N workers, whose `requests` say which
rows they are of: a row that several workers sent is updated once, by the sum in
their order. `tables` are as for ServeRows, the rest as for GroupedUpdate.
)doc");

}  // namespace
}  // namespace tfembed
