#ifndef TFEMBED_CORE_SUPPORT_MEMORY_BLOCK_H_
#define TFEMBED_CORE_SUPPORT_MEMORY_BLOCK_H_

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "cc/core/support/huge_pages.h"

namespace tfembed {

// Zeroed memory, aligned to 64 bytes, given back on destruction. From 64 KiB on
// it comes straight from the system and costs nothing until it is touched; from
// 2 MiB on it asks for huge pages, worth 1.3 to 2 times the speed of random
// access to rows. Such a block may also keep the addresses behind it, to become
// larger where it is: memory that a system hands out anew is zeroed, on a
// virtual machine perhaps fetched from its host first, at 0.5 GB/s. Movable;
// not thread-safe.
class MemoryBlock {
 public:
  MemoryBlock() = default;
  MemoryBlock(MemoryBlock&& other) noexcept { Swap(other); }
  MemoryBlock& operator=(MemoryBlock&& other) noexcept {
    MemoryBlock old(std::move(other));
    Swap(old);
    return *this;
  }
  ~MemoryBlock();

  // The first `small_page_bytes` are left on small pages, for blocks of which
  // perhaps only the beginning is ever used. ResourceExhausted.
  static absl::StatusOr<MemoryBlock> Allocate(size_t bytes,
                                              size_t small_page_bytes = 0);

  // A block with addresses for `most_bytes` in all, where the system has that
  // many; and one that starts below 64 KiB has none to spare.
  // ResourceExhausted.
  static absl::StatusOr<MemoryBlock> AllocateExtensible(size_t bytes,
                                                        size_t most_bytes);

  // Makes the block larger where it is; what is new is zeroed, and small pages
  // at the old end are moved to a huge one where they are a part of it now.
  // False where there are no addresses left: nothing has changed.
  bool Extend(size_t bytes);
  bool CanExtend(size_t bytes) const {
    return bytes <= size_ || bytes <= mapped_bytes_;
  }

  // Writes to all pages of bytes [begin, end), so that they are there; what
  // they hold stays. REQUIRES: end <= size(), and these bytes are zero.
  void WritePages(size_t begin, size_t end);

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  static absl::StatusOr<MemoryBlock> Map(size_t bytes, size_t most_bytes,
                                         size_t small_page_bytes);
  void AskForHugePages(size_t begin);

  void Swap(MemoryBlock& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }

  char* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_bytes_ = 0;  // Addresses; 0: from the heap.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_MEMORY_BLOCK_H_
