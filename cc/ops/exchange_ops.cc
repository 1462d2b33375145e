// Lookup and update of rows that lie in device memory, spread over replicas.
// Only XLA has kernels for them (cc/xla).
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status LookupShape(InferenceContext* context) {
  ShapeHandle shard;
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &shard));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &ids));
  context->set_output(
      0, context->Matrix(context->Dim(ids, 0), context->Dim(shard, 1)));
  context->set_output(1, context->Scalar());
  return absl::OkStatus();
}

absl::Status UpdateShape(InferenceContext* context) {
  std::vector<ShapeHandle> slots;
  std::vector<ShapeHandle> input;
  TF_RETURN_IF_ERROR(context->input("slots", &slots));
  ShapeHandle shard;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &shard));
  TF_RETURN_IF_ERROR(context->input("ids", &input));
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(context->WithRank(input[0], 1, &ids));
  TF_RETURN_IF_ERROR(context->input("gradients", &input));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->Merge(
      input[0], context->Matrix(context->Dim(ids, 0), context->Dim(shard, 1)),
      &unused));
  TF_RETURN_IF_ERROR(context->input("learning_rate", &input));
  TF_RETURN_IF_ERROR(context->WithRank(input[0], 0, &unused));
  context->set_output(0, shard);
  for (int s = 0; s < slots.size(); ++s) {
    ShapeHandle slot;
    TF_RETURN_IF_ERROR(context->WithRank(slots[s], 2, &slot));
    DimensionHandle rows;
    TF_RETURN_IF_ERROR(
        context->Merge(context->Dim(slot, 0), context->Dim(shard, 0), &rows));
    context->set_output(1 + s, slot);
  }
  std::vector<int64_t> table_rows;
  TF_RETURN_IF_ERROR(context->GetAttr("table_rows", &table_rows));
  context->set_output(1 + slots.size(), context->Scalar());
  context->set_output(2 + slots.size(), context->Vector(table_rows.size()));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>ExchangeLookup")
    .Input("shard: float")
    .Input("ids: int32")
    .Output("rows: float")
    .Output("rounds: int32")
    .Attr("replicas: int >= 1")
    .Attr("buffer: int >= 1")
    .SetShapeFn(LookupShape)
    .Doc(R"doc(
Rows [n, width] of `ids` [n]: id i is row i / replicas of `shard` [rows, width] on
replica i % replicas. An id outside of [0, replicas * rows) gives zeros. Each
replica sends at most `buffer` distinct ids to each other one in a round; `rounds`
says how many it took, the same on all replicas.
)doc");

REGISTER_OP("Tfembed>ExchangeUpdate")
    .Input("values: float")
    .Input("slots: S * float")
    .Input("ids: int32")
    .Input("gradients: float")
    .Input("learning_rate: float")
    .Output("updated_values: float")
    .Output("updated_slots: S * float")
    .Output("rounds: int32")
    .Output("nonfinite_rows: int32")
    .Attr("S: int >= 0")
    .Attr("rule: string")
    .Attr("table_rows: list(int) >= 1")
    .Attr("replicas: int >= 1")
    .Attr("buffer: int >= 1")
    .Attr("nonfinite: {'skip', 'allow'} = 'skip'")
    .Attr("portable: bool = false")
    .SetShapeFn(UpdateShape)
    .Doc(R"doc(
Sums `gradients` [n, width] of each distinct id of `ids` [n] over all replicas and
applies `rule` once to its row of `values` [rows, width] and of `slots`, [rows,
width] or [rows, 1]. Ids and `buffer` are those of ExchangeLookup. The rows are
those of tables one after another, `table_rows` of each. `nonfinite_rows` [tables]
counts this replica's rows whose sum has a NaN or an infinity, which `nonfinite`
skips or allows. On a CPU, a single replica calls this library's own loops unless the
program is to be `portable`.
)doc");

}  // namespace
}  // namespace tfembed
