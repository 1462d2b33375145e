#ifndef TFEMBED_CORE_SUPPORT_MEMORY_PROMISE_H_
#define TFEMBED_CORE_SUPPORT_MEMORY_PROMISE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace tfembed {

// Memory that is going to be written, promised to its owner while this lives.
//
// A system promises more memory than it has and kills who then uses it, so what
// tables are about to write is asked for here first: it must be available
// beside all that was promised in this process and may not have been written
// yet. What others allocate meanwhile is not known: 64 MiB are left for that. A
// little, below 128 KiB with all that is promised, is not refused because other
// programs took these: then 4 MiB are left.
// Not thread-safe; any number of promises in any threads are.
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
