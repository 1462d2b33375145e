#ifndef TFEMBED_CORE_FIRST_ERROR_H_
#define TFEMBED_CORE_FIRST_ERROR_H_

#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/status/status.h"

namespace tfembed {

// The error of the lowest task of a ParallelFor, so that what is reported does
// not depend on which thread was faster. Thread-safe.
class FirstError {
 public:
  void Update(int64_t task, absl::Status status) {
    if (status.ok()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok() || task < task_) {
      status_ = std::move(status);
      task_ = task;
    }
  }

  // After all tasks have returned.
  const absl::Status& status() const { return status_; }

 private:
  std::mutex mutex_;
  absl::Status status_;
  int64_t task_ = 0;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_FIRST_ERROR_H_
