#ifndef TFEMBED_KERNELS_STEP_BATCH_H_
#define TFEMBED_KERNELS_STEP_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/step_queue.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// The list input `parts`, a batch. InvalidArgument where it does not begin with
// one bool.
absl::Status ReadBatch(tensorflow::OpKernelContext* context, StepBatch* batch);

// Hands a batch out as all the outputs. InvalidArgument where they are others.
absl::Status WriteBatch(tensorflow::OpKernelContext* context, StepBatch batch);

// How the batches of a step are laid out: the features of a spec, the same
// number of them from each of its batches, one replica's behind the other's. A
// batch is, behind its first tensor, per feature ids and, but for dense ones,
// rows and weights and, of sparse ones, the dense shape (BatchForm in Python).
class StepLayout {
 public:
  // Borrows the spec. InvalidArgument where the features cannot be those of so
  // many batches.
  absl::Status Read(tensorflow::OpKernelConstruction* construction,
                    const GroupedSpec& spec, int64_t num_batches);

  // The features of the batches, which they point into. InvalidArgument where
  // the batches are not laid out so.
  absl::Status Parts(absl::Span<const StepBatch> batches,
                     std::vector<FeatureParts>* parts) const;

 private:
  absl::Status FeatureOf(const StepBatch& batch, int feature, size_t* next,
                         FeatureParts* parts) const;

  const GroupedSpec* spec_ = nullptr;
  std::vector<tensorflow::DataType> id_dtypes_;  // Per feature, as below.
  std::vector<int64_t> batch_sizes_;
  const tensorflow::Tensor no_rows_{tensorflow::DT_INT64, {0}};
  const tensorflow::Tensor no_weights_{tensorflow::DT_FLOAT, {0}};
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_STEP_BATCH_H_
