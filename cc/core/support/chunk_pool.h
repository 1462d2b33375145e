#ifndef TFEMBED_CORE_SUPPORT_CHUNK_POOL_H_
#define TFEMBED_CORE_SUPPORT_CHUNK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cc/core/support/memory_block.h"
#include "cc/core/support/mutex.h"

namespace tfembed {

// Chunks of 64 KiB, 32 to a huge page, for owners that grow by a few of them at
// a time and are smaller than such a page each. One page has the chunks of
// several owners; it goes back to the system when all of its chunks came back.
// Chunks cost addresses until they are written, or their page's first one is.
// Thread-safe.
class ChunkPool {
 public:
  static constexpr size_t kChunkBytes = size_t{64} << 10;

  ChunkPool() = default;
  ChunkPool(const ChunkPool&) = delete;
  ChunkPool& operator=(const ChunkPool&) = delete;

  // A chunk of zeros. ResourceExhausted.
  absl::StatusOr<char*> Take();

  // Takes back what Take gave: with anything in it, or as it was.
  void Return(char* chunk, bool is_zero);

  // Addresses that the system gave and has not got back.
  size_t mapped_bytes() const;

 private:
  static constexpr int kPageChunks = kHugePageBytes / kChunkBytes;
  static_assert(kPageChunks == 32);

  // Bit i of the masks: chunk i.
  struct Page {
    MemoryBlock memory;
    uint32_t free = ~uint32_t{0};
    uint32_t dirty = 0;  // It is free, and may hold anything.
  };

  mutable Mutex mutex_;
  std::map<char*, Page> pages_ ABSL_GUARDED_BY(mutex_);  // By first byte.
  // The pages that have a free chunk. Chunks are taken from the first pages, so
  // that the last ones come to be free.
  std::map<char*, Page*> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_CHUNK_POOL_H_
