#ifndef TFEMBED_KERNELS_LOOKUP_KERNEL_H_
#define TFEMBED_KERNELS_LOOKUP_KERNEL_H_

#include <atomic>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/step/pooled_lookup.h"
#include "cc/kernels/grouped_inputs.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfembed {

// The base of kernels that look up and combine the ids of all features of a
// batch.
class LookupKernel : public tensorflow::OpKernel {
 public:
  explicit LookupKernel(tensorflow::OpKernelConstruction* construction,
                        GroupedSpec::Reader read = &GroupedSpec::Read);

 protected:
  const GroupedSpec& spec() const { return spec_; }

  // For ops with an input `tables` and outputs `activations`.
  absl::Status LookUp(tensorflow::OpKernelContext* context,
                      absl::Span<const FeatureParts> parts) const;

  // Makes the outputs `activations`, and lets `pooled` point to them.
  absl::Status AllocateActivations(tensorflow::OpKernelContext* context,
                                   const std::vector<FeatureTensors>& tensors,
                                   std::vector<PooledFeature>* pooled) const;

  // Looks the features up in the input `tables`. `pooled` has the places of
  // the activations; the rest is set here.
  absl::Status Pool(tensorflow::OpKernelContext* context,
                    std::vector<FeatureTensors>* tensors,
                    std::vector<PooledFeature>* pooled) const;

 private:
  GroupedSpec spec_;
  // Whether a batch had negative ids to drop. Until one has, lookups do not
  // search for them first, which takes 0.6 ms for 2 million ids, but run again
  // if they find one.
  mutable std::atomic<bool> had_negative_{false};
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_LOOKUP_KERNEL_H_
