#include "cc/core/support/memory_block.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "cc/core/support/memory_promise.h"

namespace tfembed {
namespace {

constexpr size_t kMapFrom = size_t{64} << 10;
constexpr size_t kAlignment = 64;
constexpr size_t kSmallPageBytes = 4096;

// Since Linux 5.14; older headers do not name it.
constexpr int kPopulateForWriting = 23;

size_t RoundUp(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

size_t RoundDown(size_t value, size_t unit) { return value / unit * unit; }

// Maps `bytes` at a multiple of `alignment`, both multiples of the page size.
char* MapAligned(size_t bytes, size_t alignment) {
  const size_t slack = alignment > kSmallPageBytes ? alignment : 0;
  void* mapped =
      mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  const size_t head = RoundUp(reinterpret_cast<uintptr_t>(begin), alignment) -
                      reinterpret_cast<uintptr_t>(begin);
  if (slack == 0) return begin;
  if (head > 0) munmap(begin, head);
  if (slack > head) munmap(begin + head + bytes, slack - head);
  return begin + head;
}

}  // namespace

MemoryBlock::~MemoryBlock() {
  if (mapped_bytes_ > 0) {
    munmap(data_, mapped_bytes_);
  } else {
    std::free(data_);
  }
}

absl::StatusOr<MemoryBlock> MemoryBlock::Allocate(size_t bytes,
                                                  size_t small_page_bytes) {
  if (bytes > SIZE_MAX / 2) return NoMemory(bytes);
  if (bytes >= kMapFrom) return Map(bytes, bytes, small_page_bytes);
  MemoryBlock block;
  void* memory = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
  if (memory == nullptr) return NoMemory(bytes);
  std::memset(memory, 0, RoundUp(bytes, kAlignment));
  block.data_ = static_cast<char*>(memory);
  block.size_ = bytes;
  return block;
}

absl::StatusOr<MemoryBlock> MemoryBlock::AllocateExtensible(size_t bytes,
                                                            size_t most_bytes) {
  if (bytes >= kMapFrom && most_bytes > bytes && most_bytes <= SIZE_MAX / 2) {
    absl::StatusOr<MemoryBlock> block = Map(bytes, most_bytes, 0);
    if (block.ok()) return block;
  }
  return Allocate(bytes);
}

absl::StatusOr<MemoryBlock> MemoryBlock::Map(size_t bytes, size_t most_bytes,
                                             size_t small_page_bytes) {
  const size_t mapped_bytes = RoundUp(most_bytes, kSmallPageBytes);
  char* data = MapAligned(mapped_bytes, mapped_bytes >= kHugePageBytes
                                            ? kHugePageBytes
                                            : kSmallPageBytes);
  if (data == nullptr) return NoMemory(most_bytes);
  MemoryBlock block;
  block.data_ = data;
  block.size_ = bytes;
  block.mapped_bytes_ = mapped_bytes;
  block.AskForHugePages(RoundUp(small_page_bytes, kHugePageBytes));
  return block;
}

// For the pages from `begin`, a multiple of theirs, that lie inside of the
// block; what is left at its end is on small pages, or a block of 2.1 MB would
// use 4.
void MemoryBlock::AskForHugePages(size_t begin) {
  const size_t end = RoundDown(RoundUp(size_, kSmallPageBytes), kHugePageBytes);
  // Advice: where the system has no huge pages the block works without.
  if (begin < end) (void)madvise(data_ + begin, end - begin, MADV_HUGEPAGE);
}

void MemoryBlock::WritePages(size_t begin, size_t end) {
  if (begin >= end) return;
  if (mapped_bytes_ > 0) {
    // One call for all of them: an interrupt each takes as long as the zeros.
    const size_t first = RoundDown(begin, kSmallPageBytes);
    const size_t last = RoundUp(end, kSmallPageBytes);
    if (madvise(data_ + first, last - first, kPopulateForWriting) == 0) return;
  }
  for (size_t i = begin; i < end;
       i = RoundDown(i, kSmallPageBytes) + kSmallPageBytes) {
    data_[i] = 0;
  }
}

bool MemoryBlock::Extend(size_t bytes) {
  if (!CanExtend(bytes)) return false;
  if (bytes <= size_) return true;
  const size_t old_size = std::exchange(size_, bytes);
  const size_t begin = RoundDown(old_size, kHugePageBytes);
  AskForHugePages(begin);
  // The old end is on small pages; that is up to 2 MB in a growth by several.
  const bool is_whole_page_now = bytes - begin >= kHugePageBytes;
  if (is_whole_page_now && old_size > begin) {
    MoveToHugePages(data_ + begin, kHugePageBytes);
  }
  return true;
}

}  // namespace tfembed
