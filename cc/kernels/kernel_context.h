#ifndef TFEMBED_KERNELS_KERNEL_CONTEXT_H_
#define TFEMBED_KERNELS_KERNEL_CONTEXT_H_

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/support/executor.h"
#include "cc/core/support/guard_memory.h"
#include "cc/kernels/kernel_registration.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/lib/core/threadpool.h"

// Helpers of kernels: registration for the CPU, and for their OpKernelContext
// scalars, threads, memory for rows.
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

// ResourceExhausted: the system refused memory that a kernel needs beside what
// TensorFlow allocates for it. Throws nothing.
absl::Status NoMemoryFor(const tensorflow::OpKernel& kernel);

// A kernel whose Compute may be refused memory: then the op fails, where
// TensorFlow's threads would end the process.
template <class Kernel>
class WithinMemory : public Kernel {
 public:
  static_assert(!std::is_base_of_v<tensorflow::AsyncOpKernel, Kernel>);
  using Kernel::Kernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    GuardMemory([&] { Kernel::Compute(context); },
                [&] { context->SetStatus(NoMemoryFor(*this)); });
  }
};

// Registers a class as the CPU's kernel of the op "Tfembed>name"; its Compute
// may be refused memory.
#define TFEMBED_KERNEL(name, ...)                                          \
  TFEMBED_REGISTER_KERNEL(::tensorflow::KernelDefBuilder("Tfembed>" #name) \
                              .Device(::tensorflow::DEVICE_CPU),           \
                          ::tfembed::WithinMemory<__VA_ARGS__>)

// The same of an asynchronous kernel, which sees to that itself.
#define TFEMBED_ASYNC_KERNEL(name, ...)                                    \
  TFEMBED_REGISTER_KERNEL(::tensorflow::KernelDefBuilder("Tfembed>" #name) \
                              .Device(::tensorflow::DEVICE_CPU),           \
                          __VA_ARGS__)

// OpKernelContext::allocate_output for the rows of a batch. Large outputs for
// the CPU come from a pool (core/support/block_pool.h) on huge pages: malloc
// would return the memory to the system after each step.
absl::Status AllocateRows(tensorflow::OpKernelContext* context, int index,
                          const tensorflow::TensorShape& shape,
                          tensorflow::Tensor** output);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_KERNEL_CONTEXT_H_
