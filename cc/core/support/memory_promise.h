#ifndef TFEMBED_CORE_SUPPORT_MEMORY_PROMISE_H_
#define TFEMBED_CORE_SUPPORT_MEMORY_PROMISE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace tfembed {

// Bytes that this process may still use without swapping or being killed: what
// the system has and what the control groups of a container leave, the least of
// them. INT64_MAX where nothing is told. It reads some small files, about as
// long as 64 KiB of new memory take. `root`: where the system's folders are,
// for tests.
int64_t AvailableMemory(const std::string& root = "");

// Memory that is going to be written, promised to its owner while this lives.
//
// A system promises more memory than it has, and kills a process that uses it.
// So a table asks here before it writes: the memory must be available beside
// all that this process was promised and may not have written yet. 64 MiB are
// left for other programs, whose allocations are not known. A request of
// little, below 128 KiB together with all promises, leaves only 4 MiB, so that
// it is not refused because other programs took the 64. A promise is not
// thread-safe; threads may each have promises.
class MemoryPromise {
 public:
  MemoryPromise() = default;
  MemoryPromise(const MemoryPromise&) = delete;
  MemoryPromise& operator=(const MemoryPromise&) = delete;
  ~MemoryPromise() { Return(); }

  // Has `bytes` more promised. ResourceExhausted: nothing has changed.
  absl::Status Ask(int64_t bytes);

  // The same for who asks for more than he needs, and asks again for less where
  // that is refused: it may be refused by what was read some milliseconds ago.
  bool AskForMore(int64_t bytes);

  // To be called when the memory was written, or will not be.
  void Return() { Return(bytes_); }
  void Return(int64_t bytes);

  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// Whether a promise of `bytes` could be had now.
absl::Status CheckMemory(int64_t bytes);

// The same error of a request that a system refused by itself.
absl::Status NoMemory(uint64_t bytes);

// Has `available` take the place of AvailableMemory while it lives, for tests.
class ScopedAvailableMemory {
 public:
  explicit ScopedAvailableMemory(std::function<int64_t()> available);
  ScopedAvailableMemory(const ScopedAvailableMemory&) = delete;
  ScopedAvailableMemory& operator=(const ScopedAvailableMemory&) = delete;
  ~ScopedAvailableMemory();
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_MEMORY_PROMISE_H_
