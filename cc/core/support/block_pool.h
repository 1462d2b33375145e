#ifndef TFEMBED_CORE_SUPPORT_BLOCK_POOL_H_
#define TFEMBED_CORE_SUPPORT_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "cc/core/support/memory_block.h"
#include "cc/core/support/mutex.h"

namespace tfembed {

// Large blocks that are taken and given back in each step, as the rows that a
// lookup returns are. malloc gives such memory back to the system: blocks of
// more than 32 MB each time, smaller ones where another thread than the main
// one has them. To get it again takes as long as to fill it with rows.
//
// A block that comes back is kept for the next one of its size, of which there
// are eight between powers of two. It goes back to the system when it was not
// taken for kMostUnused others, and the oldest ones do where more than
// most_kept_bytes are kept. Thread-safe.
class BlockPool {
 public:
  static constexpr int64_t kMostUnused = 1024;

  explicit BlockPool(size_t most_kept_bytes)
      : most_kept_bytes_(most_kept_bytes) {}
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // At least so many bytes, aligned to 64, with anything in them. Null where
  // the system has none.
  void* Take(size_t bytes);

  // Takes back what Take gave.
  void Return(void* data);

  size_t kept_bytes() const;

 private:
  struct Kept {
    MemoryBlock block;
    int64_t time;  // When the block returned, in takes.
  };

  // Moves what is not to be kept into `dropped`, whose destruction may take
  // milliseconds.
  void Drop(std::vector<MemoryBlock>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t most_kept_bytes_;
  mutable Mutex mutex_;
  std::unordered_map<void*, MemoryBlock> taken_ ABSL_GUARDED_BY(mutex_);
  std::deque<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // By time.
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_takes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_BLOCK_POOL_H_
