// Ops on all features of a step at once, over any number of tables.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/feature_attrs.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// The features of a grouped op, as far as attributes and shapes tell.
struct Features {
  std::vector<std::string> kinds;
  std::vector<int64_t> table_ids;
  std::vector<int64_t> max_sequence_lengths;
  std::vector<int64_t> dims;
  std::vector<ShapeHandle> ids;
  std::vector<ShapeHandle> rows;
  ShapeHandle batch_sizes;
};

// Ranks of one feature's tensors.
absl::Status CheckFeature(InferenceContext* context, const Features& features,
                          int f) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRank(features.ids[f], 1, &unused));
  const int rank = features.kinds[f] == "sparse" ? 2 : 1;
  TF_RETURN_IF_ERROR(context->WithRank(features.rows[f], rank, &unused));
  if (rank == 1) return absl::OkStatus();
  DimensionHandle two;
  return context->WithValue(context->Dim(features.rows[f], 1), 2, &two);
}

absl::Status ReadFeatures(InferenceContext* context, Features* features) {
  TF_RETURN_IF_ERROR(context->GetAttr("kinds", &features->kinds));
  TF_RETURN_IF_ERROR(context->GetAttr("table_ids", &features->table_ids));
  TF_RETURN_IF_ERROR(context->GetAttr("max_sequence_lengths",
                                      &features->max_sequence_lengths));
  TF_RETURN_IF_ERROR(context->GetAttr("dims", &features->dims));
  TF_RETURN_IF_ERROR(context->input("ids", &features->ids));
  TF_RETURN_IF_ERROR(context->input("rows", &features->rows));
  std::vector<ShapeHandle> inputs;
  TF_RETURN_IF_ERROR(context->input("tables", &inputs));
  ShapeHandle unused;
  for (ShapeHandle table : inputs) {
    TF_RETURN_IF_ERROR(context->WithRank(table, 0, &unused));
  }
  TF_RETURN_IF_ERROR(context->input("weights", &inputs));
  for (ShapeHandle weights : inputs) {
    TF_RETURN_IF_ERROR(context->WithRank(weights, 1, &unused));
  }
  const int count = features->ids.size();
  if (features->rows.size() != count || features->kinds.size() != count ||
      features->table_ids.size() != count ||
      features->max_sequence_lengths.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`kinds`, `table_ids` and `max_sequence_lengths` must have one entry "
        "for each of the ",
        count, " features."));
  }
  for (int f = 0; f < count; ++f) {
    TF_RETURN_IF_ERROR(CheckFeature(context, *features, f));
    if (features->table_ids[f] < 0 ||
        features->table_ids[f] >= features->dims.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`table_ids` must be in [0, ", features->dims.size(), "); got ",
          features->table_ids[f], " for feature ", f, "."));
    }
  }
  for (const char* name : {"batch_sizes", "columns"}) {
    TF_RETURN_IF_ERROR(context->input(name, &inputs));
    TF_RETURN_IF_ERROR(context->WithRank(inputs[0], 1, &unused));
    DimensionHandle dim;
    TF_RETURN_IF_ERROR(
        context->WithValue(context->Dim(unused, 0), count, &dim));
  }
  return absl::OkStatus();
}

// The batch size of a feature where its tensors' shapes tell it.
DimensionHandle BatchSize(InferenceContext* context, const Features& features,
                          int f) {
  DimensionHandle size = context->UnknownDim();
  if (features.kinds[f] == "dense") {
    size = context->Dim(features.ids[f], 0);
  } else if (features.kinds[f] == "ragged") {
    const absl::Status status =
        context->Subtract(context->Dim(features.rows[f], 0), 1, &size);
    if (!status.ok()) return context->UnknownDim();
  }
  return size;
}

ShapeHandle ActivationsShape(InferenceContext* context,
                             const Features& features, int f) {
  const DimensionHandle batch = BatchSize(context, features, f);
  const DimensionHandle dim =
      context->MakeDim(features.dims[features.table_ids[f]]);
  const int64_t length = features.max_sequence_lengths[f];
  if (length == 0) return context->MakeShape({batch, dim});
  return context->MakeShape({batch, context->MakeDim(length), dim});
}

absl::Status CheckGradients(InferenceContext* context,
                            const Features& features) {
  std::vector<ShapeHandle> gradients;
  TF_RETURN_IF_ERROR(context->input("gradients", &gradients));
  for (int f = 0; f < gradients.size(); ++f) {
    ShapeHandle unused;
    TF_RETURN_IF_ERROR(context->Merge(
        gradients[f], ActivationsShape(context, features, f), &unused));
  }
  return absl::OkStatus();
}

absl::Status LookupShape(InferenceContext* context) {
  Features features;
  TF_RETURN_IF_ERROR(ReadFeatures(context, &features));
  for (int f = 0; f < features.ids.size(); ++f) {
    context->set_output(f, ActivationsShape(context, features, f));
  }
  return absl::OkStatus();
}

absl::Status GradientShape(InferenceContext* context) {
  Features features;
  TF_RETURN_IF_ERROR(ReadFeatures(context, &features));
  TF_RETURN_IF_ERROR(CheckGradients(context, features));
  const int tables = features.dims.size();
  std::vector<tensorflow::DataType> distinct;
  TF_RETURN_IF_ERROR(context->GetAttr("Tdistinct", &distinct));
  if (distinct.size() != tables) {
    return absl::InvalidArgumentError(
        absl::StrCat("`Tdistinct` must have one entry for each of the ", tables,
                     " tables; got ", distinct.size(), "."));
  }
  for (int t = 0; t < tables; ++t) {
    const DimensionHandle n = context->UnknownDim();
    context->set_output(t, context->Vector(n));
    context->set_output(tables + t,
                        context->Matrix(n, context->MakeDim(features.dims[t])));
  }
  return absl::OkStatus();
}

absl::Status UpdateShape(InferenceContext* context) {
  Features features;
  TF_RETURN_IF_ERROR(ReadFeatures(context, &features));
  TF_RETURN_IF_ERROR(CheckGradients(context, features));
  const int64_t tables = features.dims.size();
  std::vector<ShapeHandle> rates;
  TF_RETURN_IF_ERROR(context->input("learning_rates", &rates));
  ShapeHandle vector;
  TF_RETURN_IF_ERROR(context->WithRank(rates[0], 1, &vector));
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(
      context->WithValue(context->Dim(vector, 0), tables, &unused));
  context->set_output(0, context->Vector(tables));
  return absl::OkStatus();
}

// What every grouped op knows of its features, but for `tables: T * resource`.
#define TFEMBED_FEATURE_INPUTS     \
  .Input("ids: Tids")              \
      .Input("rows: F * int64")    \
      .Input("weights: F * float") \
      .Input("batch_sizes: int64") \
      .Input("columns: int64")

REGISTER_OP("Tfembed>GroupedLookup")
    .Input("tables: T * resource") TFEMBED_FEATURE_INPUTS
    .Output("activations: F * float") TFEMBED_FEATURE_ATTRS.SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc(R"doc(
Looks up and combines the ids of all features. `tables` are tf.Variables
[vocabulary, dim] or tables of TableCreate. A feature has `ids` [n], strings where
its table's keys are strings, `rows` by
its kind (dense: empty; ragged: row splits [batch + 1]; sparse: sorted indices
[n, 2]) and `weights` [n] or [0]. A row of sparse ids has `columns` [F] places,
any number where that is below 0. Activations are [batch, dim], or
[batch, max_sequence_length, dim] where that is not 0. Empty rows are zeros.
)doc");

REGISTER_OP("Tfembed>GroupedLookupGradient")
    .Input("tables: T * resource") TFEMBED_FEATURE_INPUTS
    .Input("gradients: F * float")
    .Output("distinct_ids: Tdistinct")
    .Output("sums: T * float") TFEMBED_FEATURE_ATTRS
    .Attr("Tdistinct: list({int64, string}) >= 1")
    .SetIsStateful()
    .SetShapeFn(GradientShape)
    .Doc(R"doc(
The gradient of GroupedLookup for each table: its distinct ids, integers
ascending, strings in the order in which they first come, and the sum
[distinct, dim] of each id's gradients over all features. `Tdistinct` is the dtype
of each table's ids.
)doc");

// `rules` is one string, a line a table: eager TensorFlow takes two lists of
// strings for the same kernel where they differ only in the middle of an entry
// of over 80 characters.
REGISTER_OP("Tfembed>GroupedUpdate")
    .Input("tables: T * resource")
    .Input("slots: S * resource") TFEMBED_FEATURE_INPUTS
    .Input("gradients: F * float")
    .Input("learning_rates: float")
    .Output("nonfinite_rows: int64")
    .Attr("S: int >= 0") TFEMBED_FEATURE_ATTRS.Attr("rules: string")
    .Attr("table_names: list(string) = []")
    .Attr("nonfinite: {'skip', 'refuse', 'allow'} = 'skip'")
    .SetIsStateful()
    .SetShapeFn(UpdateShape)
    .Doc(R"doc(
Sums the gradients of each distinct id over all features of its table and
applies the table's rule once to its row and slots. `rules` has a line for each
table (a list of strings would not do, since eager TensorFlow takes two of them
for the same where only the middle of a long string differs). `slots` are the slot
variables of the tables that are tf.Variables, table by table, in the order of
the rule's slots. `nonfinite_rows` [T] counts sums with a NaN or an infinity,
which `nonfinite` skips, refuses before anything is changed, or allows.
`table_names` is what errors call the tables; '', or no names: a table that is no
tf.Variable by its own name, others by their places.
)doc");

}  // namespace
}  // namespace tfembed
