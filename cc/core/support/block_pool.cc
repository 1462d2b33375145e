#include "cc/core/support/block_pool.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/numeric/bits.h"
#include "absl/status/statusor.h"

namespace tfembed {
namespace {

constexpr size_t kLeastUnit = 64;

// The least size that is not below `bytes`.
size_t SizeOf(size_t bytes) {
  const int log2 = absl::bit_width(bytes | 1) - 1;
  const size_t unit = std::max(kLeastUnit, size_t{1} << std::max(log2 - 3, 0));
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

void* BlockPool::Take(size_t bytes) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  const size_t size = SizeOf(bytes);
  const MutexLock lock(&mutex_);
  ++num_takes_;
  // The block that came last is the likeliest to be in a cache.
  const auto kept =
      std::find_if(kept_.rbegin(), kept_.rend(),
                   [&](const Kept& k) { return k.block.size() == size; });
  MemoryBlock block;
  if (kept != kept_.rend()) {
    block = std::move(kept->block);
    kept_bytes_ -= size;
    kept_.erase(std::next(kept).base());
  } else {
    absl::StatusOr<MemoryBlock> made = MemoryBlock::Allocate(size);
    if (!made.ok()) {
      kept_.clear();
      kept_bytes_ = 0;
      made = MemoryBlock::Allocate(size);
    }
    if (!made.ok()) return nullptr;
    block = *std::move(made);
  }
  void* const data = block.data();
  taken_.emplace(data, std::move(block));
  return data;
}

void BlockPool::Return(void* data) {
  std::vector<MemoryBlock> dropped;
  const MutexLock lock(&mutex_);
  const auto taken = taken_.find(data);
  if (taken == taken_.end()) return;
  kept_bytes_ += taken->second.size();
  kept_.push_back({std::move(taken->second), num_takes_});
  taken_.erase(taken);
  Drop(&dropped);
}

void BlockPool::Drop(std::vector<MemoryBlock>* dropped) {
  while (!kept_.empty() && (kept_bytes_ > most_kept_bytes_ ||
                            num_takes_ - kept_.front().time > kMostUnused)) {
    kept_bytes_ -= kept_.front().block.size();
    dropped->push_back(std::move(kept_.front().block));
    kept_.pop_front();
  }
}

size_t BlockPool::kept_bytes() const {
  const MutexLock lock(&mutex_);
  return kept_bytes_;
}

}  // namespace tfembed
