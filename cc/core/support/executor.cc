#include "cc/core/support/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "cc/core/support/mutex.h"

namespace tfembed {
namespace {

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// One ParallelFor. Helpers that come late find no task left and leave without a
// look at `body`, which may be gone by then.
class Loop {
 public:
  Loop(int64_t tasks, const TaskBody& body) : tasks_(tasks), body_(body) {}

  // Runs tasks until none is left. After a task throws, no other one begins.
  void Work() {
    int64_t done = 0;
    for (;;) {
      const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks_) break;
      if (!has_thrown_.load(std::memory_order_relaxed)) Run(task);
      ++done;
    }
    if (done == 0) return;
    if (done_.fetch_add(done, std::memory_order_acq_rel) + done == tasks_) {
      const MutexLock lock(&mutex_);
      all_done_.NotifyAll();
    }
  }

  // Throws what the first task threw that did.
  void Wait() {
    // The last tasks of the others mostly end within microseconds.
    for (int i = 0; i < kSpins && !AllDone(); ++i) Pause();
    if (!AllDone()) {
      const MutexLock lock(&mutex_);
      while (!AllDone()) all_done_.Wait(&mutex_);
    }
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
  }

 private:
  static constexpr int kSpins = 1000;

  bool AllDone() const {
    return done_.load(std::memory_order_acquire) == tasks_;
  }

  void Run(int64_t task) {
    try {
      body_(task);
    } catch (...) {
      if (!has_thrown_.exchange(true)) thrown_ = std::current_exception();
    }
  }

  const int64_t tasks_;
  const TaskBody& body_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<bool> has_thrown_{false};
  std::exception_ptr thrown_;  // Set before its task counts as done.
  Mutex mutex_;
  Condition all_done_;
};

}  // namespace

// The helpers in the loops of one executor. A thread that slept begins 30 to 40
// us late, and waking the thread takes its caller 15; so a helper whose loop is
// over waits for the next loop before it leaves. A helper that was scheduled
// takes whatever loop there is when it begins.
class Crew {
 public:
  explicit Crew(std::chrono::microseconds stay) : stay_(stay) {}

  // Makes helpers wanted for a loop, and returns how many are to be scheduled
  // for that, each to call Help; Lack those that are not. Withdraw is to
  // follow.
  int64_t Offer(const std::shared_ptr<Loop>& loop, int64_t helpers) {
    const MutexLock lock(&mutex_);
    offers_.push_back({loop, helpers});
    wanted_ += helpers;
    const int64_t lacking = std::max<int64_t>(wanted_ - free_, 0);
    free_ += lacking;
    return lacking;
  }

  // Helpers that will never begin.
  void Lack(int64_t helpers) {
    const MutexLock lock(&mutex_);
    free_ -= helpers;
  }

  // Removes a loop that is over.
  void Withdraw(const Loop* loop) {
    const MutexLock lock(&mutex_);
    const auto offer = std::find_if(
        offers_.begin(), offers_.end(),
        [&](const Offered& offered) { return offered.loop.get() == loop; });
    if (offer == offers_.end()) return;
    wanted_ -= offer->helpers;
    offers_.erase(offer);
  }

  void Help() {
    mutex_.lock();
    for (bool stays = true; stays || wanted_ > 0;) {
      if (const std::shared_ptr<Loop> loop = Take()) {
        --free_;
        mutex_.unlock();
        loop->Work();
        mutex_.lock();
        ++free_;
      }
      mutex_.unlock();
      stays = LookOut();
      mutex_.lock();
    }
    --free_;
    mutex_.unlock();
  }

  // Helpers leave.
  void Close() { is_closed_ = true; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Offered {
    std::shared_ptr<Loop> loop;
    int64_t helpers;  // As many as the loop still wants.
  };

  static constexpr int kPauses = 8;  // Between looks at the clock.

  // A loop that wants a helper, or null.
  std::shared_ptr<Loop> Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (offers_.empty()) return nullptr;
    std::shared_ptr<Loop> loop = offers_.back().loop;
    if (--offers_.back().helpers == 0) offers_.pop_back();
    --wanted_;
    return loop;
  }

  // Waits until a helper is wanted. False where none was for some time.
  bool LookOut() const {
    const Clock::time_point end = Clock::now() + stay_;
    while (!is_closed_.load(std::memory_order_relaxed)) {
      for (int i = 0; i < kPauses; ++i) {
        if (wanted_.load(std::memory_order_relaxed) > 0) return true;
        Pause();
      }
      if (Clock::now() >= end) return false;
    }
    return false;
  }

  const std::chrono::microseconds stay_;
  Mutex mutex_;
  std::vector<Offered> offers_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> wanted_{0};  // In all; changes under mutex_.
  // Helpers that look out or have not begun.
  int64_t free_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> is_closed_{false};
};

Executor::Executor(std::chrono::microseconds stay)
    : crew_(std::make_shared<Crew>(stay)) {}

Executor::~Executor() { crew_->Close(); }

void ParallelFor(Executor* executor, int64_t tasks, const TaskBody& body) {
  const int64_t helpers = std::min<int64_t>(NumThreads(executor), tasks) - 1;
  std::shared_ptr<Loop> loop;
  int64_t lacking = 0;
  if (helpers > 0) {
    try {
      loop = std::make_shared<Loop>(tasks, body);
      lacking = executor->crew()->Offer(loop, helpers);
    } catch (const std::bad_alloc&) {
      loop = nullptr;
    }
  }
  if (loop == nullptr) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  const std::shared_ptr<Crew>& crew = executor->crew();
  try {
    for (; lacking > 0; --lacking) {
      executor->Schedule([crew] { crew->Help(); });
    }
  } catch (...) {
    crew->Lack(lacking);  // Mostly no memory; the caller works all the same.
  }
  loop->Work();
  crew->Withdraw(loop.get());
  loop->Wait();
}

}  // namespace tfembed
