#include "cc/core/testing/thread_executor.h"

#include <utility>

namespace tfembed {

ThreadExecutor::ThreadExecutor(int num_threads) {
  for (int i = 1; i < num_threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

ThreadExecutor::~ThreadExecutor() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadExecutor::Schedule(std::function<void()> work) {
  {
    const MutexLock lock(&mutex_);
    queue_.push_back(std::move(work));
  }
  wake_.NotifyOne();
}

void ThreadExecutor::Run() {
  mutex_.lock();
  for (;;) {
    while (!stopping_ && queue_.empty()) wake_.Wait(&mutex_);
    if (queue_.empty()) break;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    mutex_.unlock();
    work();
    mutex_.lock();
  }
  mutex_.unlock();
}

}  // namespace tfembed
