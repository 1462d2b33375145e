#ifndef TFEMBED_KERNELS_POOLED_OUTPUT_H_
#define TFEMBED_KERNELS_POOLED_OUTPUT_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfembed {

// OpKernelContext::allocate_output for rows of a batch. Large ones come out of
// a pool (core/support/block_pool.h), on huge pages, where the output is for
// the CPU alone: malloc's memory would be the system's again after each step.
absl::Status AllocateRows(tensorflow::OpKernelContext* context, int index,
                          const tensorflow::TensorShape& shape,
                          tensorflow::Tensor** output);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_POOLED_OUTPUT_H_
