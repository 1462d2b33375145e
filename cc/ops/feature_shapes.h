#ifndef TFEMBED_OPS_FEATURE_SHAPES_H_
#define TFEMBED_OPS_FEATURE_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"

// Ops on all features of a batch share these inputs and attributes, and the
// shapes of activations.

// The attributes of ops on all features of a step: `dims` has one entry for
// each table, all others one for each feature.
#define TFEMBED_FEATURE_ATTRS                                  \
  .Attr("T: int >= 1")                                         \
      .Attr("F: int >= 1")                                     \
      .Attr("Tids: list({int64, string}) >= 1")                \
      .Attr("dims: list(int) >= 1")                            \
      .Attr("kinds: list({'dense', 'ragged', 'sparse'}) >= 1") \
      .Attr("table_ids: list(int) >= 1")                       \
      .Attr("combiners: list({'sum', 'mean', 'sqrtn'}) >= 1")  \
      .Attr("max_sequence_lengths: list(int) >= 1")            \
      .Attr("validate: list(bool) >= 1")                       \
      .Attr("feature_names: list(string) = []")

// The features among the inputs of every grouped op.
#define TFEMBED_FEATURE_INPUTS     \
  .Input("ids: Tids")              \
      .Input("rows: F * int64")    \
      .Input("weights: F * float") \
      .Input("batch_sizes: int64") \
      .Input("columns: int64")

namespace tfembed {

// The features of a grouped op, as far as attributes and shapes tell.
struct FeatureShapes {
  std::vector<std::string> kinds;
  std::vector<int64_t> table_ids;
  std::vector<int64_t> max_sequence_lengths;
  std::vector<int64_t> dims;
  std::vector<tensorflow::shape_inference::ShapeHandle> ids;
  std::vector<tensorflow::shape_inference::ShapeHandle> rows;
};

// Checks the ranks of the features among the inputs.
absl::Status ReadFeatureShapes(
    tensorflow::shape_inference::InferenceContext* context,
    FeatureShapes* features);

// Sets output f to the shape of the activations of feature f.
void SetActivations(tensorflow::shape_inference::InferenceContext* context,
                    const FeatureShapes& features);

// Checks that the input `gradients` has the shapes of the activations.
absl::Status CheckGradientShapes(
    tensorflow::shape_inference::InferenceContext* context,
    const FeatureShapes& features);

// Checks that the input `learning_rates` has one entry for each table.
absl::Status CheckLearningRates(
    tensorflow::shape_inference::InferenceContext* context, int64_t tables);

}  // namespace tfembed

#endif  // TFEMBED_OPS_FEATURE_SHAPES_H_
