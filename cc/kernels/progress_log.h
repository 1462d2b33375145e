#ifndef TFEMBED_KERNELS_PROGRESS_LOG_H_
#define TFEMBED_KERNELS_PROGRESS_LOG_H_

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace tfembed {

// Lines in TensorFlow's log that say how far work on a table or a file is, as
// soon as it takes long: the first one after five seconds, and one every five
// seconds from then on; when it ends, how long it took. The environment's
// TFEMBED_PROGRESS_SECONDS is another time, or less than 0 for no lines.
// Thread-safe.
class ProgressLog {
 public:
  // `what`: as in "Saving table 'users'"; of so many rows, or other units.
  ProgressLog(std::string what, int64_t count, std::string unit = "rows");
  ProgressLog(const ProgressLog&) = delete;
  ProgressLog& operator=(const ProgressLog&) = delete;
  ~ProgressLog();

  // So many more are done.
  void Add(int64_t count);

 private:
  using Clock = std::chrono::steady_clock;

  double SecondsSince(Clock::time_point moment) const;

  const std::string what_;
  const int64_t count_;
  const std::string unit_;
  const double pause_;  // Seconds.
  const Clock::time_point begin_;
  std::mutex mutex_;
  // Guarded by mutex_.
  Clock::time_point last_;
  int64_t done_ = 0;
  bool has_spoken_ = false;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_PROGRESS_LOG_H_
