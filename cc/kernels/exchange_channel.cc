#include "cc/kernels/exchange_channel.h"

#include <thread>

namespace tfembed {

Deadlines& Deadlines::Get() {
  static Deadlines* const deadlines = new Deadlines;
  return *deadlines;
}

Deadlines::Entry Deadlines::Add(Time time, std::weak_ptr<Timed> timed) {
  const MutexLock lock(&mutex_);
  if (!is_running_) std::thread([this] { Run(); }).detach();
  is_running_ = true;
  const Entry entry(time, next_++);
  entries_.emplace(entry, std::move(timed));
  if (entries_.begin()->first == entry) earlier_.NotifyOne();
  return entry;
}

void Deadlines::Remove(const Entry& entry) {
  const MutexLock lock(&mutex_);
  entries_.erase(entry);
}

void Deadlines::Run() {
  while (true) {
    std::shared_ptr<Timed> late;
    {
      const MutexLock lock(&mutex_);
      if (entries_.empty()) {
        earlier_.Wait(&mutex_);
        continue;
      }
      const auto first = entries_.begin();
      const Time time = first->first.first;
      if (std::chrono::steady_clock::now() < time) {
        earlier_.WaitUntil(&mutex_, time);
        continue;
      }
      late = first->second.lock();
      entries_.erase(first);
    }
    if (late != nullptr) late->Expire();
  }
}

}  // namespace tfembed
