#ifndef TFEMBED_CORE_TESTING_THREAD_EXECUTOR_H_
#define TFEMBED_CORE_TESTING_THREAD_EXECUTOR_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "cc/core/support/executor.h"
#include "cc/core/support/mutex.h"

namespace tfembed {

// An executor with num_threads - 1 threads of its own; the caller is the last.
// The destructor runs what was scheduled, then joins. Thread-safe.
class ThreadExecutor : public Executor {
 public:
  explicit ThreadExecutor(int num_threads);
  ~ThreadExecutor() override;

  int num_threads() const override {
    return static_cast<int>(threads_.size()) + 1;
  }
  void Schedule(std::function<void()> work) override;

 private:
  void Run();

  Mutex mutex_;
  Condition wake_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_THREAD_EXECUTOR_H_
