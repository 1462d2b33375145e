#include "cc/kernels/progress_log.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "tensorflow/core/platform/logging.h"

namespace tfembed {
namespace {

constexpr double kPause = 5;

double PauseSeconds() {
  const char* const text = std::getenv("TFEMBED_PROGRESS_SECONDS");
  double seconds = kPause;
  if (text != nullptr && !absl::SimpleAtod(text, &seconds)) seconds = kPause;
  return seconds;
}

}  // namespace

ProgressLog::ProgressLog(std::string what, int64_t count, std::string unit)
    : what_(std::move(what)),
      count_(count),
      unit_(std::move(unit)),
      pause_(PauseSeconds()),
      begin_(Clock::now()),
      last_(begin_) {}

ProgressLog::~ProgressLog() {
  if (!has_spoken_) return;
  LOG(INFO) << absl::StrFormat("%s: %d of %d %s in %.1f s", what_, done_,
                               count_, unit_, SecondsSince(begin_));
}

void ProgressLog::Add(int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  done_ += count;
  if (pause_ < 0 || SecondsSince(last_) < pause_ || done_ >= count_) return;
  last_ = Clock::now();
  has_spoken_ = true;
  const double left = SecondsSince(begin_) * (count_ - done_) / done_;
  LOG(INFO) << absl::StrFormat("%s: %d of %d %s (%d %%), some %.0f s left",
                               what_, done_, count_, unit_,
                               100 * done_ / count_, left);
}

double ProgressLog::SecondsSince(Clock::time_point moment) const {
  return std::chrono::duration<double>(Clock::now() - moment).count();
}

}  // namespace tfembed
