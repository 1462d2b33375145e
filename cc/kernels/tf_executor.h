#ifndef TFEMBED_KERNELS_TF_EXECUTOR_H_
#define TFEMBED_KERNELS_TF_EXECUTOR_H_

#include <functional>

#include "cc/core/support/executor.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tsl {
namespace thread {
class ThreadPool;
}  // namespace thread
}  // namespace tsl

namespace tfembed {

// The core's threads: TensorFlow's intra-op pool of the kernel's device.
class TfExecutor : public Executor {
 public:
  explicit TfExecutor(tensorflow::OpKernelContext* context);

  int num_threads() const override { return num_threads_; }
  void Schedule(std::function<void()> work) override;

 private:
  tsl::thread::ThreadPool* pool_;
  int num_threads_;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_TF_EXECUTOR_H_
