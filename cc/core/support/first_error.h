#ifndef TFEMBED_CORE_SUPPORT_FIRST_ERROR_H_
#define TFEMBED_CORE_SUPPORT_FIRST_ERROR_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "cc/core/support/mutex.h"

namespace tfembed {

// The error of the lowest task of a ParallelFor, so that what is reported does
// not depend on which thread was faster. Thread-safe.
class FirstError {
 public:
  void Update(int64_t task, absl::Status status) {
    if (status.ok()) return;
    const MutexLock lock(&mutex_);
    if (status_.ok() || task < task_) {
      status_ = std::move(status);
      task_ = task;
    }
  }

  // After all tasks have returned.
  const absl::Status& status() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return status_;
  }

 private:
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int64_t task_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_FIRST_ERROR_H_
