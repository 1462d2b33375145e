#include "cc/core/support/memory_promise.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "cc/core/support/mutex.h"

namespace tfembed {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Limits beyond are none: how version 1 says so depends on the page's size.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t number;
  if (file >> number) return number;  // Not where it says "max".
  return std::nullopt;
}

// The numbers behind words in a file of a word and a number a line, -1 where
// there is none.
template <size_t n>
std::array<int64_t, n> ReadFields(const std::string& path,
                                  const std::array<const char*, n>& names) {
  std::array<int64_t, n> numbers;
  numbers.fill(-1);
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t end = line.find(' ');
    for (size_t i = 0; i < n && end != line.npos; ++i) {
      if (line.compare(0, end, names[i]) != 0) continue;
      numbers[i] = std::strtoll(line.c_str() + end, nullptr, 10);
    }
  }
  return numbers;
}

// The folder of this process' control group below a mount, by its line in
// /proc/self/cgroup, "" where there is none: "0::/a" is group /a of version 2,
// "5:cpu,memory:/a" of version 1's controller.
std::string GroupFolder(const std::string& root,
                        const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers.find("," + controller + ",") != controllers.npos) {
      return line.substr(second + 1);
    }
  }
  return "";
}

// How a version of control groups names what is asked of it.
struct GroupFiles {
  const char* mount;
  const char* controller;
  const char* limit;
  const char* usage;
  const char* cached;  // Files in memory, and of them
  const char* shared;  // those that are memory alone: nothing to drop.
  const char* caches;  // The kernel's own; "": not among the usage.
};

constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory",
                                  "memory",
                                  "memory.limit_in_bytes",
                                  "memory.usage_in_bytes",
                                  "total_cache",
                                  "total_shmem",
                                  ""};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup",  "",     "memory.max",
                                  "memory.current",  "file", "shmem",
                                  "slab_reclaimable"};

// The bytes that a group's limit leaves, droppable caches included.
int64_t LeftInGroup(const std::string& folder, const GroupFiles& files) {
  const auto limit = ReadNumber(folder + "/" + files.limit);
  if (limit.value_or(kUnlimited) > kNoLimit) return kUnlimited;
  const auto usage = ReadNumber(folder + "/" + files.usage);
  if (!usage.has_value()) return kUnlimited;
  const auto [cached, shared, caches] = ReadFields<3>(
      folder + "/memory.stat", {files.cached, files.shared, files.caches});
  const auto dropped = std::max<int64_t>(0, cached) -
                       std::max<int64_t>(0, shared) +
                       std::max<int64_t>(0, caches);
  const int64_t used = std::max<int64_t>(0, *usage - dropped);
  return std::max<int64_t>(0, *limit - used);
}

// The least that the process' group and those around it leave. A container sees
// its own group as the mount, or as a folder below it.
int64_t LeftInGroups(const std::string& root, const GroupFiles& files) {
  int64_t left = kUnlimited;
  std::string folder = GroupFolder(root, files.controller);
  if (folder == "/") folder.clear();
  for (;;) {
    left = std::min(left, LeftInGroup(root + files.mount + folder, files));
    if (folder.empty()) return left;
    folder.erase(folder.find_last_of('/'));
  }
}

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

int64_t AvailableMemory(const std::string& root) {
  int64_t left =
      std::min(LeftInGroups(root, kVersion1), LeftInGroups(root, kVersion2));
  const auto [kilobytes] =
      ReadFields<1>(root + "/proc/meminfo", {"MemAvailable:"});
  return kilobytes < 0 ? left : std::min(left, kilobytes * 1024);
}

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
