// Ops that bring the shards of a table, with all that its policies noted, into
// tensors, and those notes back.
#include "absl/status/status.h"
#include "cc/ops/dtypes.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status SnapshotShape(InferenceContext* context) {
  for (int input = 0; input < context->num_inputs(); ++input) {
    TF_RETURN_IF_ERROR(CheckHandle(context, input));
  }
  const auto n = context->UnknownDim(), waiting = context->UnknownDim();
  context->set_output(0, context->Vector(n));
  context->set_output(1, context->Matrix(n, context->UnknownDim()));
  context->set_output(2, context->Matrix(n, context->UnknownDim()));
  context->set_output(3, context->Vector(context->UnknownDim()));
  context->set_output(4, context->Vector(waiting));
  context->set_output(5, context->Vector(waiting));
  context->set_output(
      6, context->Matrix(context->UnknownDim(), context->UnknownDim()));
  context->set_output(7, context->Vector(2));
  return absl::OkStatus();
}

absl::Status ImportNotesShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  ShapeHandle keys, notes;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &keys));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 1, &notes));
  TF_RETURN_IF_ERROR(context->Merge(keys, notes, &keys));
  return context->WithRank(context->input(3), 0, &notes);
}

absl::Status ImportCountersShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  ShapeHandle kind;
  return context->WithRank(context->input(2), 0, &kind);
}

REGISTER_OP("Tfembed>TableSnapshot")
    .Input("tables: N * resource")
    .Output("keys: Tkey")
    .Output("values: Tvalue")
    .Output("slots: float")
    .Output("notes: int64")
    .Output("waiting: Tkey")
    .Output("seen: int32")
    .Output("counters: uint8")
    .Output("kinds: string")
    .Attr("N: int >= 1")
    .Attr("only_rows: bool = false")
    .Attr(TFEMBED_KEYS_ATTR)
    .Attr(TFEMBED_VALUES_ATTR)
    .SetIsStateful()
    .SetShapeFn(SnapshotShape)
    .Doc(R"doc(
All `keys` [n] of the shards of a table, shard after shard and in no particular
order in each, their rows `values` [n, dim] and their `slots` [n, floats of all
slots]; what the eviction policy noted of each row, `notes` [n], or [0] where it
notes nothing; the keys `waiting` [m] for admission and in how many steps each was
`seen` [m]; and the `counters` [blocks of all shards, bytes] of an admission whose
keys share some. `kinds` [2] say what notes and counters mean, "" where there are
none. All is of one moment, of all shards together. With `only_rows` what is of
the policies is empty.
)doc");

REGISTER_OP("Tfembed>TableImportNotes")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Input("notes: int64")
    .Input("kind: string")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(ImportNotesShape)
    .Doc(R"doc(
Notes of the rows of `keys` [n] what `Tfembed>TableSnapshot` has given, where the
table's policy notes the same `kind`; else nothing. Keys without a row are ignored.
)doc");

REGISTER_OP("Tfembed>TableImportCounters")
    .Input("table: resource")
    .Input("counters: uint8")
    .Input("kind: string")
    .SetIsStateful()
    .SetShapeFn(ImportCountersShape)
    .Doc(R"doc(
Takes over the `counters` that `Tfembed>TableSnapshot` has given, where those of
the table have the same `kind` and shape; else nothing.
)doc");

}  // namespace
}  // namespace tfembed
