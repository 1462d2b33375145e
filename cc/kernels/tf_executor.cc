#include "cc/kernels/tf_executor.h"

#include <algorithm>
#include <utility>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tfembed {

TfExecutor::TfExecutor(tensorflow::OpKernelContext* context) {
  const auto* threads = context->device()->tensorflow_cpu_worker_threads();
  pool_ = threads->workers;
  num_threads_ = std::max(1, threads->num_threads);
}

void TfExecutor::Schedule(std::function<void()> work) {
  pool_->Schedule(std::move(work));
}

}  // namespace tfembed
