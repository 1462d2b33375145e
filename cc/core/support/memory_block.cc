#include "cc/core/support/memory_block.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tfembed {
namespace {

constexpr size_t kMapFrom = size_t{64} << 10;
constexpr size_t kAlignment = 64;
constexpr size_t kSmallPageBytes = 4096;

size_t RoundUp(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

absl::Status NoMemory(size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("The system refused ", bytes,
                   " bytes of memory for a table. Raise the limit (ulimit -v, "
                   "the container's memory), or make the table smaller."));
}

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
  MemoryBlock block;
  if (bytes > SIZE_MAX / 2) return NoMemory(bytes);
  if (bytes < kMapFrom) {
    void* memory = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
    if (memory == nullptr) return NoMemory(bytes);
    std::memset(memory, 0, RoundUp(bytes, kAlignment));
    block.data_ = static_cast<char*>(memory);
    block.size_ = bytes;
    return block;
  }
  // The kernel backs the whole 2 MiB pages inside the block with huge ones and
  // the rest with small ones: no need to round up more than to 4 KiB.
  const size_t mapped_bytes = RoundUp(bytes, kSmallPageBytes);
  const bool huge = bytes >= kHugePageBytes;
  char* data =
      MapAligned(mapped_bytes, huge ? kHugePageBytes : kSmallPageBytes);
  if (data == nullptr) return NoMemory(bytes);
  const size_t huge_from = RoundUp(small_page_bytes, kHugePageBytes);
  if (huge && huge_from < mapped_bytes) {
    // Advice: where the system has no huge pages the block works without.
    (void)madvise(data + huge_from, mapped_bytes - huge_from, MADV_HUGEPAGE);
  }
  block.data_ = data;
  block.size_ = bytes;
  block.mapped_bytes_ = mapped_bytes;
  return block;
}

}  // namespace tfembed
