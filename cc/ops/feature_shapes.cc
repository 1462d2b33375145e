#include "cc/ops/feature_shapes.h"

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Ranks of one feature's tensors.
absl::Status CheckFeature(InferenceContext* context,
                          const FeatureShapes& features, int f) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRank(features.ids[f], 1, &unused));
  const int rank = features.kinds[f] == "sparse" ? 2 : 1;
  TF_RETURN_IF_ERROR(context->WithRank(features.rows[f], rank, &unused));
  if (rank == 1) return absl::OkStatus();
  DimensionHandle two;
  return context->WithValue(context->Dim(features.rows[f], 1), 2, &two);
}

// The batch size of a feature where its tensors' shapes tell it.
DimensionHandle BatchSize(InferenceContext* context,
                          const FeatureShapes& features, int f) {
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

}  // namespace

absl::Status ReadFeatureShapes(InferenceContext* context,
                               FeatureShapes* features) {
  TF_RETURN_IF_ERROR(context->GetAttr("kinds", &features->kinds));
  TF_RETURN_IF_ERROR(context->GetAttr("table_ids", &features->table_ids));
  TF_RETURN_IF_ERROR(context->GetAttr("max_sequence_lengths",
                                      &features->max_sequence_lengths));
  TF_RETURN_IF_ERROR(context->GetAttr("dims", &features->dims));
  TF_RETURN_IF_ERROR(context->input("ids", &features->ids));
  TF_RETURN_IF_ERROR(context->input("rows", &features->rows));
  std::vector<ShapeHandle> inputs;
  ShapeHandle unused;
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

namespace {

// The shape of the activations of feature f.
ShapeHandle ActivationsShape(InferenceContext* context,
                             const FeatureShapes& features, int f) {
  const DimensionHandle batch = BatchSize(context, features, f);
  const DimensionHandle dim =
      context->MakeDim(features.dims[features.table_ids[f]]);
  const int64_t length = features.max_sequence_lengths[f];
  if (length == 0) return context->MakeShape({batch, dim});
  return context->MakeShape({batch, context->MakeDim(length), dim});
}

}  // namespace

void SetActivations(InferenceContext* context, const FeatureShapes& features) {
  for (int f = 0; f < features.ids.size(); ++f) {
    context->set_output(f, ActivationsShape(context, features, f));
  }
}

absl::Status CheckGradientShapes(InferenceContext* context,
                                 const FeatureShapes& features) {
  std::vector<ShapeHandle> gradients;
  TF_RETURN_IF_ERROR(context->input("gradients", &gradients));
  for (int f = 0; f < gradients.size(); ++f) {
    ShapeHandle unused;
    TF_RETURN_IF_ERROR(context->Merge(
        gradients[f], ActivationsShape(context, features, f), &unused));
  }
  return absl::OkStatus();
}

absl::Status CheckLearningRates(InferenceContext* context, int64_t tables) {
  std::vector<ShapeHandle> rates;
  TF_RETURN_IF_ERROR(context->input("learning_rates", &rates));
  ShapeHandle vector;
  TF_RETURN_IF_ERROR(context->WithRank(rates[0], 1, &vector));
  DimensionHandle unused;
  return context->WithValue(context->Dim(vector, 0), tables, &unused);
}

}  // namespace tfembed
