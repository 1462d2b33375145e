#include "cc/core/support/chunk_pool.h"

#include <cstring>
#include <utility>

namespace tfembed {

absl::StatusOr<char*> ChunkPool::Take() {
  char* chunk;
  bool is_dirty;
  {
    const MutexLock lock(&mutex_);
    if (open_.empty()) {
      absl::StatusOr<MemoryBlock> memory =
          MemoryBlock::Allocate(kHugePageBytes);
      if (!memory.ok()) return memory.status();
      char* const begin = memory->data();
      Page& page = pages_[begin];
      page.memory = *std::move(memory);
      open_[begin] = &page;
    }
    const auto [begin, page] = *open_.begin();
    const int i = __builtin_ctz(page->free);
    const uint32_t bit = uint32_t{1} << i;
    is_dirty = (page->dirty & bit) != 0;
    page->dirty &= ~bit;
    page->free &= ~bit;
    if (page->free == 0) open_.erase(open_.begin());
    chunk = begin + i * kChunkBytes;
  }
  if (is_dirty) std::memset(chunk, 0, kChunkBytes);
  return chunk;
}

void ChunkPool::Return(char* chunk, bool is_zero) {
  const size_t at = reinterpret_cast<uintptr_t>(chunk) % kHugePageBytes;
  char* const begin = chunk - at;
  const MutexLock lock(&mutex_);
  Page& page = pages_.at(begin);
  const uint32_t bit = uint32_t{1} << (at / kChunkBytes);
  page.free |= bit;
  if (!is_zero) page.dirty |= bit;
  if (page.free == ~uint32_t{0}) {
    open_.erase(begin);
    pages_.erase(begin);
  } else {
    open_[begin] = &page;
  }
}

size_t ChunkPool::mapped_bytes() const {
  const MutexLock lock(&mutex_);
  return pages_.size() * kHugePageBytes;
}

}  // namespace tfembed
