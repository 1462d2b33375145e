#include "cc/core/support/memory_promise.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "cc/core/support/available_memory.h"
#include "cc/core/support/mutex.h"

namespace tfembed {
namespace {

using Clock = std::chrono::steady_clock;

// For what is not counted here: page tables, the program's other memory.
constexpr int64_t kReserve = int64_t{64} << 20;

// Growth below this does not change what there is for the rest, so that other
// programs may have taken most of the reserve. Earlier promises count, too:
// the parts of one large batch ask one by one.
constexpr int64_t kLittle = int64_t{128} << 10;
constexpr int64_t kReserveForLittle = int64_t{4} << 20;

// A machine fills its memory no faster, and a reading of what is available is
// trusted for no longer.
constexpr int64_t kBytesPerNanosecond = 20;
constexpr std::chrono::nanoseconds kMostTrust = std::chrono::milliseconds(50);

// How old a reading may be by which more than is needed is refused.
constexpr std::chrono::nanoseconds kMostAge = std::chrono::milliseconds(10);

// The memory that this process was promised, over all tables.
class Ledger {
 public:
  static Ledger& Get() {
    static Ledger* const ledger = new Ledger;  // Outlives all tables.
    return *ledger;
  }

  absl::Status Take(int64_t bytes) {
    const MutexLock lock(&mutex_);
    if (TakeTrusted(bytes) || TakeFrom(available_(), bytes)) {
      return absl::OkStatus();
    }
    return TooFew(bytes);
  }

  bool TakeMore(int64_t bytes) {
    const MutexLock lock(&mutex_);
    if (TakeTrusted(bytes)) return true;
    const bool is_new = Clock::now() < read_at_ + kMostAge;
    if (is_new && bytes > read_ - Reserve(bytes) - promised_) return false;
    return TakeFrom(available_(), bytes);
  }

  void Return(int64_t bytes) {
    const MutexLock lock(&mutex_);
    promised_ -= bytes;
  }

  void SetAvailable(std::function<int64_t()> available) {
    const MutexLock lock(&mutex_);
    available_ = std::move(available);
    trusted_bytes_ = 0;
    trusted_until_ = read_at_ = {};
  }

 private:
  // The bytes that must be left when `bytes` are taken.
  int64_t Reserve(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return promised_ + bytes < kLittle ? kReserveForLittle : kReserve;
  }

  bool TakeTrusted(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (bytes > trusted_bytes_ || Clock::now() >= trusted_until_) return false;
    trusted_bytes_ -= bytes;
    promised_ += bytes;
    return true;
  }

  // A reading lasts for what may have become of half of what it left: the one
  // half for others by its time, the other for promises by their bytes.
  bool TakeFrom(int64_t available, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    read_ = available;
    read_at_ = Clock::now();
    const int64_t left = available - kReserve - promised_;
    trusted_bytes_ = 0;
    if (bytes > available - Reserve(bytes) - promised_) return false;
    // Where little is left beyond the reserve, trust nothing: read each time.
    trusted_bytes_ = std::max<int64_t>(0, (left - bytes) / 2);
    const std::chrono::nanoseconds trust(trusted_bytes_ / kBytesPerNanosecond);
    trusted_until_ = read_at_ + std::min(trust, kMostTrust);
    promised_ += bytes;
    return true;
  }

  absl::Status TooFew(int64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "A table needs ", bytes, " bytes more of memory, of which ", read_,
        " are available; ", Reserve(bytes),
        " of them are left to the program, and ", promised_,
        " were promised to what runs now. Raise the limit (the machine's or "
        "the container's memory), bound the table by `max_size`, or evict."));
  }

  Mutex mutex_;
  std::function<int64_t()> available_ ABSL_GUARDED_BY(mutex_) = [] {
    return AvailableMemory();
  };
  int64_t promised_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t trusted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::time_point trusted_until_ ABSL_GUARDED_BY(mutex_);
  int64_t read_ ABSL_GUARDED_BY(mutex_) = 0;  // The last reading.
  Clock::time_point read_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status MemoryPromise::Ask(int64_t bytes) {
  if (bytes <= 0) return absl::OkStatus();
  absl::Status status = Ledger::Get().Take(bytes);
  if (status.ok()) bytes_ += bytes;
  return status;
}

bool MemoryPromise::AskForMore(int64_t bytes) {
  if (bytes <= 0) return true;
  const bool is_promised = Ledger::Get().TakeMore(bytes);
  if (is_promised) bytes_ += bytes;
  return is_promised;
}

void MemoryPromise::Return(int64_t bytes) {
  if (bytes <= 0) return;
  Ledger::Get().Return(bytes);
  bytes_ -= bytes;
}

absl::Status CheckMemory(int64_t bytes) { return MemoryPromise().Ask(bytes); }

absl::Status NoMemory(uint64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("The system refused ", bytes,
                   " bytes of memory for a table. Raise the limit (ulimit -v, "
                   "the container's memory), or make the table smaller."));
}

ScopedAvailableMemory::ScopedAvailableMemory(
    std::function<int64_t()> available) {
  Ledger::Get().SetAvailable(std::move(available));
}

ScopedAvailableMemory::~ScopedAvailableMemory() {
  Ledger::Get().SetAvailable([] { return AvailableMemory(); });
}

}  // namespace tfembed
