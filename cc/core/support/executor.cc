#include "cc/core/support/executor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace tfembed {
namespace {

// One ParallelFor. Helpers that start late find no task left and leave without
// a look at `body`, which may be gone by then.
class Loop {
 public:
  Loop(int64_t tasks, const std::function<void(int64_t)>& body)
      : tasks_(tasks), body_(body) {}

  void Work() {
    int64_t done = 0;
    for (;;) {
      const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) break;
      body_(task);
      ++done;
    }
    if (done == 0) return;
    if (done_.fetch_add(done, std::memory_order_acq_rel) + done == tasks_) {
      std::lock_guard<std::mutex> lock(mutex_);
      all_done_.notify_all();
    }
  }

  void Wait() {
    // The last tasks of the others mostly end within microseconds.
    for (int i = 0; i < kSpins; ++i) {
      if (AllDone()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return AllDone(); });
  }

 private:
  static constexpr int kSpins = 1000;

  bool AllDone() const {
    return done_.load(std::memory_order_acquire) == tasks_;
  }

  const int64_t tasks_;
  const std::function<void(int64_t)>& body_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

}  // namespace

void ParallelFor(Executor* executor, int64_t tasks,
                 const std::function<void(int64_t)>& body) {
  const int64_t helpers =
      executor == nullptr
          ? 0
          : std::min<int64_t>(executor->num_threads(), tasks) - 1;
  if (helpers <= 0) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  auto loop = std::make_shared<Loop>(tasks, body);
  for (int64_t i = 0; i < helpers; ++i) {
    executor->Schedule([loop] { loop->Work(); });
  }
  loop->Work();
  loop->Wait();
}

}  // namespace tfembed
