#ifndef TFEMBED_KERNELS_TF_EXECUTOR_H_
#define TFEMBED_KERNELS_TF_EXECUTOR_H_

#include <algorithm>
#include <functional>
#include <utility>

#include "cc/core/support/executor.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tfembed {

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

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_TF_EXECUTOR_H_
