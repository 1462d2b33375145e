#ifndef TFEMBED_KERNELS_GROUPED_INPUTS_H_
#define TFEMBED_KERNELS_GROUPED_INPUTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/support/executor.h"
#include "cc/kernels/feature_input.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// What all grouped ops say of their tables and features in attributes.
struct GroupedSpec {
  std::vector<int64_t> dims;  // One per table.
  std::vector<FeatureSpec> features;

  // InvalidArgument where lists differ in length or values are not allowed.
  absl::Status Read(tensorflow::OpKernelConstruction* construction);

  // [batch_size, dim] or [batch_size, max_sequence_length, dim].
  absl::Status ActivationsShape(int feature, int64_t batch_size,
                                tensorflow::TensorShape* shape) const;
};

// One feature of a batch as it comes. Borrows the tensors.
struct FeatureParts {
  const tensorflow::Tensor* ids;
  const tensorflow::Tensor* rows;
  const tensorflow::Tensor* weights;
  int64_t batch_size;
  int64_t columns;  // Below 0: any number.
};

// The features that are a kernel's inputs.
absl::Status ReadParts(tensorflow::OpKernelContext* context,
                       const GroupedSpec& spec,
                       std::vector<FeatureParts>* parts);

// The tensors of all features, ranks and batch sizes checked: what is needed to
// know the shapes of activations. They live as long as `parts`.
absl::Status ReadFeatures(const GroupedSpec& spec,
                          absl::Span<const FeatureParts> parts,
                          std::vector<FeatureTensors>* tensors);

// Checks that gradients, a list input, have the shapes of the activations.
absl::Status ReadGradients(tensorflow::OpKernelContext* context,
                           const GroupedSpec& spec,
                           absl::Span<const FeatureTensors> tensors,
                           std::vector<const float*>* gradients);

// Lays out the bags of all features, on the executor's threads.
// drops_negative[t]: as FeatureInput::Build takes it, for table t.
absl::Status BuildFeatures(const GroupedSpec& spec,
                           absl::Span<const FeatureTensors> tensors,
                           const std::vector<bool>& drops_negative,
                           Executor* executor,
                           std::vector<FeatureInput>* features);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_GROUPED_INPUTS_H_
