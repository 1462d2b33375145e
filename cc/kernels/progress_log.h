#ifndef TFEMBED_KERNELS_PROGRESS_LOG_H_
#define TFEMBED_KERNELS_PROGRESS_LOG_H_

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace tfembed {

// Logs the progress of long work on a table or a file to TensorFlow's log: a
// line every five seconds, and the total time at the end. The environment
// variable TFEMBED_PROGRESS_SECONDS sets another interval, or no lines if it is
// negative. Thread-safe.
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
