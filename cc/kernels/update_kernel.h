#ifndef TFEMBED_KERNELS_UPDATE_KERNEL_H_
#define TFEMBED_KERNELS_UPDATE_KERNEL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/grouped_update.h"
#include "cc/core/optimizers/interface.h"
#include "cc/kernels/feature_input.h"
#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/grouped_sinks.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfembed {

// Trains all tables with the gradients of a batch's activations, wherever the
// batch comes from: the op has `tables`, `slots`, `gradients` and
// `learning_rates` among its inputs and `nonfinite_rows` for output.
class UpdateKernel : public tensorflow::OpKernel {
 public:
  explicit UpdateKernel(tensorflow::OpKernelConstruction* construction);

 protected:
  const GroupedSpec& spec() const { return spec_; }

  absl::Status Update(tensorflow::OpKernelContext* context,
                      absl::Span<const FeatureParts> parts) const;

 private:
  absl::Status Construct(tensorflow::OpKernelConstruction* construction);
  // Graphs that were made before there were names have none.
  absl::Status ReadTableNames(tensorflow::OpKernelConstruction* construction);
  absl::Status Apply(absl::Span<const FeatureTensors> tensors,
                     const std::vector<const float*>& gradients,
                     LockedSinks* sinks, Executor* executor,
                     std::vector<TableUpdate>* updates) const;
  absl::Status ReadLearningRates(tensorflow::OpKernelContext* context,
                                 std::vector<TableUpdate>* updates) const;

  GroupedSpec spec_;
  std::vector<std::string> table_names_;  // What errors call them.
  UpdateRules rules_;
  NonFinite nonfinite_ = NonFinite::kSkip;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_UPDATE_KERNEL_H_
