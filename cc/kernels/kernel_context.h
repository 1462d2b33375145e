#ifndef TFEMBED_KERNELS_KERNEL_CONTEXT_H_
#define TFEMBED_KERNELS_KERNEL_CONTEXT_H_

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/support/executor.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/lib/core/threadpool.h"

// Helpers of kernels for their OpKernelContext: scalars, threads, memory for
// rows.
namespace tfembed {

// Reads the only element of an input. InvalidArgument, with the input's name:
// not a scalar.
template <typename T>
absl::Status ReadScalar(tensorflow::OpKernelContext* context, int input,
                        const char* name, T* value) {
  const tensorflow::Tensor& tensor = context->input(input);
  if (tensor.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be a scalar; got shape ",
                     tensor.shape().DebugString(), "."));
  }
  *value = tensor.scalar<T>()();
  return absl::OkStatus();
}

// The core's threads: TensorFlow's intra-op pool of the kernel's device.
class TfExecutor : public Executor {
 public:
  explicit TfExecutor(tensorflow::OpKernelContext* context) {
    const auto* threads = context->device()->tensorflow_cpu_worker_threads();
    pool_ = threads->workers;
    num_threads_ = std::max(1, threads->num_threads);
  }

  int num_threads() const override { return num_threads_; }
  void Schedule(std::function<void()> work) override {
    pool_->Schedule(std::move(work));
  }

 private:
  tensorflow::thread::ThreadPool* pool_;
  int num_threads_;
};

// OpKernelContext::allocate_output for the rows of a batch. Large outputs for
// the CPU come from a pool (core/support/block_pool.h) on huge pages: malloc
// would return the memory to the system after each step.
absl::Status AllocateRows(tensorflow::OpKernelContext* context, int index,
                          const tensorflow::TensorShape& shape,
                          tensorflow::Tensor** output);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_KERNEL_CONTEXT_H_
