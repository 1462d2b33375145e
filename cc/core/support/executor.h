#ifndef TFEMBED_CORE_SUPPORT_EXECUTOR_H_
#define TFEMBED_CORE_SUPPORT_EXECUTOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "cc/core/support/mutex.h"

namespace tfembed {

class Crew;

// Threads for loops: TensorFlow's intra-op pool in the kernels, std::thread in
// tests. Threads that helped in a ParallelFor stay at hand for the executor's
// next one, for the time `stay` at most; the destructor lets them go.
// Thread-safe.
class Executor {
 public:
  static constexpr std::chrono::microseconds kStay{50};

  explicit Executor(std::chrono::microseconds stay = kStay);
  virtual ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // How many threads may work at once, the caller's included; at least 1.
  virtual int num_threads() const = 0;

  // Runs `work` on one of the threads, some time later or never: callers must
  // not wait for work that has not started. Throws where it cannot take it.
  virtual void Schedule(std::function<void()> work) = 0;

  const std::shared_ptr<Crew>& crew() const { return crew_; }

 private:
  const std::shared_ptr<Crew> crew_;
};

// Calls somebody else's function, of a task's number, and takes no memory, as a
// std::function may: the function has to outlive it.
class TaskBody {
 public:
  template <class Function>
  TaskBody(const Function& function)  // NOLINT: lambdas convert.
      : function_(&function), call_([](const void* given, int64_t task) {
          (*static_cast<const Function*>(given))(task);
        }) {}

  void operator()(int64_t task) const { call_(function_, task); }

 private:
  const void* const function_;
  void (*const call_)(const void* function, int64_t task);
};

// How many threads a ParallelFor of `executor` works on at most; null: serial.
inline int NumThreads(const Executor* executor) {
  return executor == nullptr ? 1 : executor->num_threads();
}

// Calls body(0) .. body(tasks - 1), each once unless one throws, on the
// caller's thread and on up to NumThreads(executor) - 1 others, and returns
// when all have returned. Throws nothing itself: where there is no memory for
// helpers, the caller works alone. The caller works too and never waits for a
// thread that has not started, so it may be called from a pool's own thread.
// Where a body throws, those that have not begun are left out, and what was
// thrown first reaches the caller when all that had begun have returned.
// Threads for which Schedule throws are done without.
void ParallelFor(Executor* executor, int64_t tasks, const TaskBody& body);

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

#endif  // TFEMBED_CORE_SUPPORT_EXECUTOR_H_
