#include "cc/core/table/row_store.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/support/memory_promise.h"
#include "cc/core/support/row_copy.h"

namespace tfembed {
namespace {

constexpr int64_t kSlabBytes = int64_t{32} << 20;
constexpr int kMinSlabShift = 6;
constexpr int kMaxSlabShift = 23;
constexpr int64_t kSmallPageBytes = int64_t{2} << 20;

// A stripe takes an eighth of its rows at a time, within these bounds: small
// enough that 1,000 tables of 10 keys stay small, and that what all stripes
// have in hand does not show.
constexpr int64_t kMinRange = 4;
constexpr int64_t kMaxRange = 256;
constexpr int64_t kRangeShare = 8;

// The largest power of two of rows that fits into kSlabBytes.
int SlabShift(int64_t width) {
  int shift = kMaxSlabShift;
  while (shift > kMinSlabShift &&
         (width * static_cast<int64_t>(sizeof(float)) << shift) > kSlabBytes) {
    --shift;
  }
  return shift;
}

}  // namespace

RowStore::RowStore(int64_t width)
    : width_(width),
      slab_shift_(SlabShift(width)),
      slab_mask_((uint32_t{1} << slab_shift_) - 1) {}

absl::StatusOr<std::unique_ptr<RowStore>> RowStore::Create(int64_t width) {
  std::unique_ptr<RowStore> store(new RowStore(width));
  const int64_t max_slabs = (kMaxRows >> store->slab_shift_) + 1;
  absl::StatusOr<MemoryBlock> addresses =
      MemoryBlock::Allocate(max_slabs * sizeof(float*), max_slabs * 8);
  if (!addresses.ok()) return addresses.status();
  store->slab_addresses_ = *std::move(addresses);
  store->slabs_ = reinterpret_cast<float**>(store->slab_addresses_.data());
  return store;
}

absl::StatusOr<MemoryBlock> RowStore::AllocateSlab(int64_t slab,
                                                   int64_t width) const {
  const int64_t bytes = (width * static_cast<int64_t>(sizeof(float)))
                        << slab_shift_;
  return MemoryBlock::Allocate(bytes, slab == 0 ? kSmallPageBytes : 0);
}

absl::StatusOr<int64_t> RowStore::Promise(int64_t rows) {
  const MutexLock lock(&mutex_);
  const int64_t needed = next_row_ + promised_ + rows;
  if (needed > kMaxRows) {
    return absl::ResourceExhaustedError(
        absl::StrCat("A table shard holds at most ", kMaxRows, " rows; it has ",
                     next_row_, " and ", rows,
                     " more may be needed. Use more "
                     "shards."));
  }
  while (MappedRows() < needed) {
    absl::StatusOr<MemoryBlock> memory = AllocateSlab(memory_.size(), width_);
    if (!memory.ok()) return memory.status();
    slabs_[memory_.size()] = reinterpret_cast<float*>(memory->data());
    memory_.push_back(*std::move(memory));
  }
  promised_ += rows;
  return BytesOf(std::clamp<int64_t>(needed - backed_rows_, 0, rows));
}

void RowStore::Withdraw(int64_t rows) {
  const MutexLock lock(&mutex_);
  promised_ -= rows;
}

RowRange RowStore::Take(int64_t wanted) {
  const MutexLock lock(&mutex_);
  const int64_t slab_end = ((next_row_ >> slab_shift_) + 1) << slab_shift_;
  const int64_t unpromised = MappedRows() - next_row_ - promised_;
  const int64_t size = std::max<int64_t>(
      1, std::min({wanted, slab_end - next_row_, unpromised}));
  RowRange range;
  range.begin = static_cast<uint32_t>(next_row_);
  range.end = static_cast<uint32_t>(next_row_ + size);
  next_row_ += size;
  backed_rows_ = std::max(backed_rows_, next_row_);
  return range;
}

int64_t RowStore::num_rows() const {
  const MutexLock lock(&mutex_);
  return next_row_;
}

absl::Status RowStore::Replace(int64_t at, int64_t count,
                               absl::Span<const float> words) {
  const MutexLock lock(&mutex_);
  const int64_t more = static_cast<int64_t>(words.size()) - count;
  const int64_t width = width_ + more;
  // Each old slab goes when it was copied.
  const int64_t rows_of_slab = std::min<int64_t>(next_row_, slab_mask_ + 1);
  MemoryPromise memory;
  absl::Status status =
      memory.Ask(std::max<int64_t>(more, 0) *
                     static_cast<int64_t>(sizeof(float)) * next_row_ +
                 BytesOf(rows_of_slab));
  if (!status.ok()) return status;
  // All addresses first, so that nothing can fail later; memory is only used
  // when it is written.
  std::vector<MemoryBlock> replaced;
  replaced.reserve(memory_.size());
  for (size_t slab = 0; slab < memory_.size(); ++slab) {
    absl::StatusOr<MemoryBlock> block = AllocateSlab(slab, width);
    if (!block.ok()) return block.status();
    replaced.push_back(*std::move(block));
  }
  for (size_t slab = 0; slab < memory_.size(); ++slab) {
    ReplaceInSlab(slab, at, count, words, std::move(replaced[slab]));
  }
  width_ = width;
  backed_rows_ = next_row_;
  return absl::OkStatus();
}

void RowStore::ReplaceInSlab(int64_t slab, int64_t at, int64_t count,
                             absl::Span<const float> words, MemoryBlock to) {
  const int64_t begin = slab << slab_shift_;
  const int64_t end = std::min<int64_t>(begin + slab_mask_ + 1, next_row_);
  const int64_t before = at + count;
  const int64_t after = at + static_cast<int64_t>(words.size());
  const int64_t width = width_ + after - before;
  const float* from_row = slabs_[slab];
  float* to_row = reinterpret_cast<float*>(to.data());
  for (int64_t row = begin; row < end; ++row) {
    CopyRow(from_row, to_row, at);
    CopyRow(words.data(), to_row + at, words.size());
    CopyRow(from_row + before, to_row + after, width_ - before);
    from_row += width_;
    to_row += width;
  }
  slabs_[slab] = reinterpret_cast<float*>(to.data());
  memory_[slab] = std::move(to);
}

void RowStore::Clear(int64_t kept_rows) {
  const MutexLock lock(&mutex_);
  const int64_t kept = (kept_rows + slab_mask_) >> slab_shift_;
  while (static_cast<int64_t>(memory_.size()) > kept) {
    slabs_[memory_.size() - 1] = nullptr;
    memory_.pop_back();
  }
  next_row_ = 0;
  backed_rows_ = std::min(backed_rows_, MappedRows());
}

RowPool::~RowPool() { std::free(free_); }

uint32_t RowPool::Take(RowStore* store) {
  if (num_free_ > 0) return free_[--num_free_];
  if (fresh_.size() == 0) {
    fresh_ =
        store->Take(std::clamp(num_taken_ / kRangeShare, kMinRange, kMaxRange));
    num_taken_ += fresh_.size();
  }
  return fresh_.begin++;
}

void RowPool::Return(uint32_t row) {
  if (num_free_ == free_capacity_) {
    const int64_t capacity = std::max<int64_t>(16, free_capacity_ * 3 / 2);
    void* larger = std::realloc(free_, capacity * sizeof(uint32_t));
    if (larger == nullptr) return;
    free_ = static_cast<uint32_t*>(larger);
    free_capacity_ = capacity;
  }
  free_[num_free_++] = row;
}

void RowPool::MoveTo(RowPool* to, int64_t wanted, int64_t kept) {
  while (available() > kept && to->available() < wanted) to->Return(TakeOwn());
}

void RowPool::Fill(int64_t rows, RowPool* spare, RowStore* store) {
  spare->MoveTo(this, /*wanted=*/rows, /*kept=*/0);
  while (available() < rows) {
    while (fresh_.size() > 0) Return(fresh_.begin++);
    fresh_ = store->Take(rows - num_free_);
    num_taken_ += fresh_.size();
  }
}

void RowPool::Clear() {
  std::free(free_);
  free_ = nullptr;
  num_free_ = free_capacity_ = 0;
  fresh_ = RowRange();
  num_taken_ = 0;
}

}  // namespace tfembed
