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

char* MapAnywhere(size_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
}

// Maps `bytes` at a multiple of `alignment`, both multiples of the page size.
// Below such a mapping the next one is mostly aligned by itself, and the system
// keeps both as one: it has some 65,000 of them for a process.
char* MapAligned(size_t bytes, size_t alignment) {
  const auto offset = [alignment](char* p) {
    return reinterpret_cast<uintptr_t>(p) % alignment;
  };
  char* begin = MapAnywhere(bytes);
  if (begin == nullptr || offset(begin) == 0) return begin;
  munmap(begin, bytes);
  begin = MapAnywhere(bytes + alignment);
  if (begin == nullptr) return nullptr;
  const size_t head = alignment - offset(begin);
  munmap(begin, head);
  if (head < alignment) munmap(begin + head + bytes, alignment - head);
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
  if (bytes >= kMapFrom) return Map(bytes, small_page_bytes);
  MemoryBlock block;
  void* memory = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
  if (memory == nullptr) return NoMemory(bytes);
  std::memset(memory, 0, RoundUp(bytes, kAlignment));
  block.data_ = static_cast<char*>(memory);
  block.size_ = bytes;
  return block;
}

absl::StatusOr<MemoryBlock> MemoryBlock::Map(size_t bytes,
                                             size_t small_page_bytes) {
  const size_t mapped_bytes = RoundUp(bytes, kSmallPageBytes);
  char* data = MapAligned(mapped_bytes, mapped_bytes >= kHugePageBytes
                                            ? kHugePageBytes
                                            : kSmallPageBytes);
  if (data == nullptr) return NoMemory(bytes);
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

void MemoryBlock::WritePages(char* begin, size_t bytes) {
  char* const first =
      begin - reinterpret_cast<uintptr_t>(begin) % kSmallPageBytes;
  // One call for all of them: an interrupt each takes as long as the zeros.
  if (madvise(first, RoundUp(begin + bytes - first, kSmallPageBytes),
              kPopulateForWriting) == 0) {
    return;
  }
  for (size_t i = 0; i < bytes; i += kSmallPageBytes) begin[i] = 0;
}

}  // namespace tfembed
