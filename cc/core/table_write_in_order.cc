// Accums of many keys that are all there: in the order of the batch, each
// thread a segment of it, under the locks of all stripes. Dealt to stripes, as
// other batches are, given and old rows are read here and there; one after the
// other they come by themselves, and the memory is free to bring the table's.
// Nor is there anything to deal. (Upserts, which read but one given row, take
// 0.95 to 0.97 of the time so, and less by one thread, which has no repeats to
// tell: two threads then gain less than their limit.)
//
// Two threads must not write one row, and repeated keys are added in their
// order. So each segment notes its rows in a filter, and keys that may be in an
// earlier segment are left to the end, to be written by one thread.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "cc/core/row_writes.h"
#include "cc/core/scratch_buffer.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/striped_table.h"
#include "cc/core/table_find.h"

namespace tfembed {
namespace {

// Of a batch. Fewer are not worth that readers of all stripes wait for them;
// the filters of more do not stay in a core's cache.
constexpr int64_t kLeastKeys = 8192;
constexpr int64_t kMostKeys = int64_t{1} << 17;

constexpr int64_t kMostSegments = 16;

// Of the keys one in so many may be left to the end.
constexpr int64_t kLeftToEnd = 8;

// Which rows the segments of a batch have, of Segments() but the last. With one
// bit a row: of rows that a segment does not have it claims one in 16 or fewer.
class RowFilters {
 public:
  void Resize(int64_t keys, int64_t segments) {
    constexpr int64_t kBitsPerKey = 16;
    log_bits_ = 6;
    while ((int64_t{1} << log_bits_) < keys * kBitsPerKey) ++log_bits_;
    words_.Resize(segments * words());
  }

  void Clear(int64_t segment) {
    std::memset(words_.data() + segment * words(), 0,
                words() * sizeof(uint64_t));
  }

  void Add(int64_t segment, const float* row) {
    const uint64_t bit = Bit(row);
    words_.data()[segment * words() + bit / 64] |= uint64_t{1} << bit % 64;
  }

  // Whether a segment before `segment` may have the row.
  bool IsBefore(int64_t segment, const float* row) const {
    const uint64_t bit = Bit(row);
    const uint64_t* word = words_.data() + bit / 64;
    for (int64_t s = 0; s < segment; ++s, word += words()) {
      if (*word >> bit % 64 & 1) return true;
    }
    return false;
  }

 private:
  int64_t words() const { return (int64_t{1} << log_bits_) / 64; }

  uint64_t Bit(const float* row) const {
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio.
    return reinterpret_cast<uintptr_t>(row) * kOdd >> (64 - log_bits_);
  }

  int log_bits_ = 0;
  ScratchBuffer<uint64_t> words_;  // [segment, word]
};

}  // namespace

class StripedTable::OrderedWrite {
 public:
  OrderedWrite(StripedTable* table, absl::Span<const int64_t> keys,
               const RowWrites& writes, Executor* executor)
      : table_(table),
        keys_(keys),
        n_(keys.size()),
        writes_(writes),
        executor_(executor),
        num_segments_(std::min<int64_t>(
            executor == nullptr ? 1 : executor->num_threads(), kMostSegments)),
        share_((n_ + num_segments_ - 1) / num_segments_),
        locks_(table->stripes_),
        indexes_(IndexesOf(table->stripes_)) {}

  // False: nothing was written.
  bool Run() {
    if (!Allocate()) return false;
    // A batch that brings new keys mostly has one among the first.
    if (!FindBlockOfRows(0, std::min(kFindKeys, n_))) return false;
    if (!FindAll() || !LeaveRepeats()) return false;
    ParallelFor(executor_, num_segments_, [&](int64_t s) { WriteSegment(s); });
    WriteLeft();
    return true;
  }

 private:
  bool Allocate() {
    try {
      rows_.Resize(n_);
      left_.Resize(n_);
      filters_.Resize(n_, num_segments_ - 1);
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }

  int64_t begin(int64_t segment) const {
    return std::min(n_, segment * share_);
  }

  // The segments from the second on in halves: both of segment 1, ...
  int64_t half_begin(int64_t half) const {
    const int64_t s = half / 2 + 1;
    return half % 2 == 0 ? begin(s) : (begin(s) + begin(s + 1)) / 2;
  }

  // The rows of keys [begin, end), null where none is to be written; false
  // where one is to be made.
  bool FindBlockOfRows(int64_t begin, int64_t end) {
    const float** const rows = rows_.data();
    FindRows(table_->stripes_, *table_->store_, indexes_, &keys_[begin],
             end - begin, /*floats=*/0, rows + begin);
    for (int64_t i = begin; i < end; ++i) {
      if (rows[i] == nullptr && writes_.Inserts(i)) return false;
      // What is there is added to only where the caller knew of it.
      if (!writes_.exists[i]) rows[i] = nullptr;
    }
    return true;
  }

  bool FindAll() {
    std::atomic<bool> all_there{true};
    ParallelFor(executor_, num_segments_, [&](int64_t s) {
      const bool is_last = s + 1 == num_segments_;
      if (!is_last) filters_.Clear(s);
      const int64_t last = begin(s + 1);
      for (int64_t first = begin(s); first < last; first += kFindKeys) {
        const int64_t end = std::min(first + kFindKeys, last);
        if (!FindBlockOfRows(first, end)) {
          all_there = false;
          return;
        }
        for (int64_t i = first; !is_last && i < end; ++i) {
          if (rows_.data()[i] != nullptr) filters_.Add(s, rows_.data()[i]);
        }
      }
    });
    return all_there;
  }

  // Takes the keys out that may be in an earlier segment; false where there are
  // many.
  bool LeaveRepeats() {
    ParallelFor(executor_, 2 * (num_segments_ - 1), [&](int64_t task) {
      const int64_t s = task / 2 + 1;
      const int64_t first = half_begin(task), last = half_begin(task + 1);
      int64_t num_left = 0;
      for (int64_t i = first; i < last; ++i) {
        const float*& row = rows_.data()[i];
        if (row == nullptr || !filters_.IsBefore(s, row)) continue;
        row = nullptr;
        left_.data()[first + num_left++] = static_cast<uint32_t>(i);
      }
      num_left_[task] = num_left;
    });
    // One after the other, in the order of the batch.
    for (int64_t task = 0; task < 2 * (num_segments_ - 1); ++task) {
      std::copy_n(left_.data() + half_begin(task), num_left_[task],
                  left_.data() + all_left_);
      all_left_ += num_left_[task];
    }
    return all_left_ <= n_ / kLeftToEnd;
  }

  void WriteSegment(int64_t s) {
    WriteBlock block;
    block.rows = const_cast<float**>(rows_.data()) + begin(s);
    block.n = begin(s + 1) - begin(s);
    Write(begin(s), &block);
  }

  void WriteLeft() {
    for (int64_t first = 0; first < all_left_; first += kFindKeys) {
      const uint32_t* const positions = left_.data() + first;
      const int64_t n = std::min(kFindKeys, all_left_ - first);
      int64_t keys[kFindKeys];
      for (int64_t i = 0; i < n; ++i) keys[i] = keys_[positions[i]];
      FindRows(table_->stripes_, *table_->store_, indexes_, keys, n,
               table_->dim_, rows_.data());
      WriteBlock block;
      block.rows = const_cast<float**>(rows_.data());
      block.positions = positions;
      block.n = n;
      Write(0, &block);
    }
  }

  // Given rows are counted from `first` on.
  void Write(int64_t first, WriteBlock* block) {
    const int64_t at = first * table_->dim_;
    block->given = static_cast<const float*>(writes_.rows) + at;
    if (writes_.old_rows != nullptr) {
      block->old = static_cast<const float*>(writes_.old_rows) + at;
    }
    block->dim = table_->dim_;
    ActiveKernels().add_rows(*block);
  }

  StripedTable* const table_;
  const absl::Span<const int64_t> keys_;
  const int64_t n_;
  const RowWrites& writes_;
  Executor* const executor_;
  const int64_t num_segments_;
  const int64_t share_;  // Of a segment.
  ExclusiveLocks locks_;
  const StripeIndexes indexes_;
  RowFilters filters_;
  ScratchBuffer<const float*> rows_;  // By key.
  // Keys that are left to the end, by number: each task's, then all.
  ScratchBuffer<uint32_t> left_;
  int64_t num_left_[2 * kMostSegments] = {};
  int64_t all_left_ = 0;
};

bool StripedTable::WriteInOrder(absl::Span<const int64_t> keys,
                                const RowWrites& writes, Executor* executor) {
  const int64_t n = keys.size();
  if (writes.kind != RowWrites::Kind::kAccum || !type_.is_float32() ||
      touches_ || n < kLeastKeys || n > kMostKeys) {
    return false;
  }
  return OrderedWrite(this, keys, writes, executor).Run();
}

}  // namespace tfembed
