// Ops that stream tables into checkpoints and back.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Handles and the prefix are scalars, and the shards of all tables make up N.
absl::Status CheckTables(InferenceContext* context, int64_t* num_tables) {
  ShapeHandle unused;
  for (int i = 0; i < context->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &unused));
  }
  std::vector<std::string> names;
  std::vector<int64_t> counts;
  TF_RETURN_IF_ERROR(context->GetAttr("tensor_names", &names));
  TF_RETURN_IF_ERROR(context->GetAttr("shard_counts", &counts));
  *num_tables = static_cast<int64_t>(names.size());
  const int64_t shards = std::accumulate(counts.begin(), counts.end(), 0LL);
  if (names.size() == counts.size() && shards == context->num_inputs() - 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("`shard_counts` must tell for each of the ", names.size(),
                   " tables how many of the ", context->num_inputs() - 1,
                   " handles are its own; got ", counts.size(), " counts of ",
                   shards, " handles."));
}

absl::Status SaveShape(InferenceContext* context) {
  int64_t num_tables;
  return CheckTables(context, &num_tables);
}

absl::Status RestoreShape(InferenceContext* context) {
  int64_t num_tables;
  TF_RETURN_IF_ERROR(CheckTables(context, &num_tables));
  for (const char* list : {"keep_seeds", "deal_rows", "load_slots"}) {
    std::vector<bool> flags;
    TF_RETURN_IF_ERROR(context->GetAttr(list, &flags));
    if (static_cast<int64_t>(flags.size()) != num_tables) {
      return absl::InvalidArgumentError(
          absl::StrCat("`", list, "` must have one entry for each of the ",
                       num_tables, " tables; got ", flags.size(), "."));
    }
  }
  context->set_output(0, context->Vector(num_tables));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableSave")
    .Input("tables: N * resource")
    .Input("prefix: string")
    .Attr("N: int >= 1")
    .Attr("tensor_names: list(string)")
    .Attr("shard_counts: list(int)")
    .SetIsStateful()
    .SetShapeFn(SaveShape)
    .Doc(R"doc(
Writes tables as one checkpoint bundle, `prefix`.index and .data-*. Table t,
whose shards are the next `shard_counts[t]` of `tables`, becomes the tensors
`tensor_names[t]`/keys [n], /values [n, dim], /slots/... [n, dim], /layout, and
/waiting/keys [m], /waiting/seen [m] where keys wait for admission, in slices. Takes a few chunks of memory; all rows are of one moment.
)doc");

REGISTER_OP("Tfembed>TableRestore")
    .Input("tables: N * resource")
    .Input("prefix: string")
    .Output("layouts: string")
    .Attr("N: int >= 1")
    .Attr("tensor_names: list(string)")
    .Attr("shard_counts: list(int)")
    .Attr("keep_seeds: list(bool)")
    .Attr("deal_rows: list(bool)")
    .Attr("load_slots: list(bool)")
    .SetIsStateful()
    .SetShapeFn(RestoreShape)
    .Doc(R"doc(
Replaces the content of tables by that of the checkpoint `prefix`, saved from
any number of shards. Everything is read and checked first; an error leaves all
tables as they were. Rows go to shard floormod(key, number of shards);
`deal_rows` false leaves that table empty instead, to be filled by
`Tfembed>TableReadChunk` and `Tfembed>TableImport`; so do all tables with the keys
that wait (`Tfembed>TableReadWaiting`, `Tfembed>TableImportWaiting`). A table takes over the saved
seed of its initial rows unless `keep_seeds`, and the saved slots with
`load_slots`. `layouts` is what the checkpoint says of each table.
)doc");

REGISTER_OP("Tfembed>CheckpointRead")
    .Input("prefix: string")
    .Output("tensors: dtypes")
    .Attr("tensor_names: list(string)")
    .Attr("dtypes: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &unused));
      return tensorflow::shape_inference::UnknownShape(context);
    })
    .Doc(R"doc(
The named tensors of the checkpoint `prefix`, of any program; [0] for one that it
has not.
)doc");

REGISTER_OP("Tfembed>CheckpointCheck")
    .Input("prefix: string")
    .Attr("checksums: bool = true")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle unused;
      return context->WithRank(context->input(0), 0, &unused);
    })
    .Doc(R"doc(
Reads all files of the checkpoint `prefix`, of any program, and compares their
checksums; with `checksums` false only what the index says, with the sizes of the
files. An error names the file, and the tensor where it is known.
)doc");

}  // namespace
}  // namespace tfembed
