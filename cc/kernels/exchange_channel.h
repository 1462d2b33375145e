#ifndef TFEMBED_KERNELS_EXCHANGE_CHANNEL_H_
#define TFEMBED_KERNELS_EXCHANGE_CHANNEL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "cc/core/support/mutex.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/lib/core/refcount.h"

namespace tfembed {

// A worker's end of a channel between workers. Its exchanges are numbered, and
// a message is found by the channel's name and that number, whatever function
// ran the exchange: a worker that traces a function again does not lose the
// others. Thread-safe.
class ExchangeChannel : public tensorflow::ResourceBase {
 public:
  struct Ends {
    std::string name;                // The same on all workers.
    std::vector<std::string> peers;  // A device of each worker.
    int64_t worker = 0;              // This one among them.
    double seconds = 0;              // For which an exchange waits.
  };

  explicit ExchangeChannel(Ends ends) : ends_(std::move(ends)) {}

  const Ends& ends() const { return ends_; }
  int64_t NextRun() { return runs_++; }

  // "worker 1 (/job:worker/replica:0/task:1)".
  std::string InWords(int64_t worker) const {
    return absl::StrCat("worker ", worker, " (", TaskOf(worker), ")");
  }

  // The name of a worker's task, without its device.
  std::string TaskOf(int64_t worker) const {
    const std::string& device = ends_.peers[worker];
    return device.substr(0, device.find("/device:"));
  }

  std::string DebugString() const override {
    return absl::StrCat("channel '", ends_.name, "' of ",
                        InWords(ends_.worker));
  }

 private:
  const Ends ends_;
  std::atomic<int64_t> runs_ = 0;
};

using ExchangeChannelPtr = tensorflow::core::RefCountPtr<ExchangeChannel>;

// Something that must end in time.
class Timed {
 public:
  virtual ~Timed() = default;
  // Called on a thread of its own once the time has passed.
  virtual void Expire() = 0;
};

// Calls Expire of objects that are still there at their time. One thread for
// all, which the first object starts. Thread-safe.
class Deadlines {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Entry = std::pair<Time, int64_t>;  // And a number, since times repeat.

  static Deadlines& Get();

  Entry Add(Time time, std::weak_ptr<Timed> timed);
  void Remove(const Entry& entry);

 private:
  [[noreturn]] void Run();

  Mutex mutex_;
  Condition earlier_;
  bool is_running_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Entry, std::weak_ptr<Timed>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_EXCHANGE_CHANNEL_H_
