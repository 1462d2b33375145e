// Upserts and accums of many keys that are all there: in the order of the
// batch, each thread a segment of it, under the locks of all stripes. Dealt to
// stripes, as other batches are, given rows are read here and there; one after
// the other they come by themselves, and the memory is free to bring the
// table's. Nor is there anything to deal.
//
// Two threads must not write one row, and of repeated keys the last one stays.
// So each segment notes its rows in a filter while it finds them, and keys that
// may be in an earlier segment are left to the end, to be written by one
// thread.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>

#include "cc/core/simd/dispatch.h"
#include "cc/core/support/row_copy.h"
#include "cc/core/support/scratch_buffer.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/table/row_writes.h"
#include "cc/core/table/table_stripe.h"

namespace tfembed {
namespace {

// The keys of a batch. With fewer keys it is not worth it to let readers of all
// stripes wait; with more keys the filters do not stay in a core's cache.
constexpr int64_t kLeastKeys = 8192;
constexpr int64_t kMostKeys = int64_t{1} << 17;

// Floats of an upserted row. Narrower rows gain from their order with two
// threads, but two threads then gain less over one than stripe by stripe.
constexpr int64_t kLeastUpserted = 16;

// A segment for each thread. More would ask for each key in the filters of many
// others; stripe by stripe has no such limit.
constexpr int64_t kMostSegments = 8;

// About so much of a thread's share may be left to the end, where one thread
// writes it.
constexpr int64_t kLeftOfShare = 4;  // One part in so many.

// The cost of looking for a key in the filter of one segment before its own, as
// a part of all else that is done for the key.
constexpr double kFilterCost = 0.08;

// Tells which rows the segments of a batch have: three bits a row, all in one
// word. A filter claims one in 570 of the rows that its segment does not have
// where words have two rows, and one in 120 at four. (With one bit in place of
// three it claims one in 16 at four, and the rows that are left to the end then
// take a thirtieth of a batch's time.)
class RowFilters {
 public:
  // For up to 8 segments. Throws std::bad_alloc.
  void Resize(int64_t segments, int64_t keys_of_each) {
    // A row is asked for in all segments before its own: two rows a word at
    // most if there are many, else four.
    const int64_t bits_per_key = segments < 4 ? 15 : 30;
    log_words_ = 1;
    while ((kWordBits << log_words_) < keys_of_each * bits_per_key) {
      ++log_words_;
    }
    words_.Resize(segments << log_words_);
  }

  void Clear(int64_t segment) {
    std::memset(words_.data() + (segment << log_words_), 0,
                sizeof(uint64_t) << log_words_);
  }

  void Add(int64_t segment, const float* row) {
    const uint64_t hash = Hash(row);
    words_.data()[(segment << log_words_) + Word(hash)] |= Bits(hash);
  }

  // Whether a segment before `segment` may have the row.
  bool IsBefore(int64_t segment, const float* row) const {
    const uint64_t hash = Hash(row);
    const uint64_t bits = Bits(hash);
    const uint64_t* const words = words_.data() + Word(hash);
    for (int64_t s = 0; s < segment; ++s) {
      if ((words[s << log_words_] & bits) == bits) return true;
    }
    return false;
  }

 private:
  static constexpr int64_t kWordBits = 64;

  static uint64_t Hash(const float* row) {
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio.
    return reinterpret_cast<uintptr_t>(row) * kOdd;
  }

  uint64_t Word(uint64_t hash) const { return hash >> (64 - log_words_); }

  // By bits of the hash that choose no word: log_words_ is far below 24.
  static uint64_t Bits(uint64_t hash) {
    constexpr uint64_t kOne = 1;
    return kOne << (hash >> 34) % kWordBits | kOne << (hash >> 28) % kWordBits |
           kOne << (hash >> 22) % kWordBits;
  }

  int log_words_ = 1;              // In a segment.
  ScratchBuffer<uint64_t> words_;  // [segment, word]
};

}  // namespace

class EmbeddingTable::OrderedWrite {
 public:
  // REQUIRES: the caller has locked all stripes; at most kMostSegments threads.
  OrderedWrite(EmbeddingTable* table, absl::Span<const int64_t> keys,
               const RowWrites& writes, Executor* executor)
      : table_(table),
        keys_(keys),
        n_(keys.size()),
        writes_(writes),
        executor_(executor),
        num_segments_(NumThreads(executor)),
        indexes_(table->stripes_.Indexes()) {
    // A segment's share goes by what a key of it costs.
    double parts[kMostSegments + 1] = {};
    for (int64_t s = 0; s < num_segments_; ++s) {
      parts[s + 1] = parts[s] + 1 / (1 + kFilterCost * s);
    }
    for (int64_t s = 0; s <= num_segments_; ++s) {
      begins_[s] = static_cast<int64_t>(n_ * (parts[s] / parts[num_segments_]));
    }
  }

  // False: nothing was written.
  bool Run() {
    if (!Allocate()) return false;
    // A batch that brings new keys mostly has one among the first.
    FindRows(0, std::min(kFindKeys, n_), /*note=*/[](const float*) {});
    if (!none_to_make_ || !FindAll() || HasManyRepeats()) return false;
    std::atomic<int64_t> nan_rows{0};
    ParallelFor(executor_, num_segments_,
                [&](int64_t s) { nan_rows += WriteSegment(s); });
    table_->nan_rows_.Add(nan_rows + WriteLeft());
    return true;
  }

 private:
  bool Allocate() {
    try {
      rows_.Resize(n_);
      left_.Resize(n_);
      left_rows_.Resize(n_);
      filters_.Resize(num_segments_ - 1, begins_[1]);
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }

  bool FindAll() {
    ParallelFor(executor_, num_segments_, [&](int64_t s) {
      const int64_t first = begins_[s], last = begins_[s + 1];
      if (s + 1 == num_segments_) {
        return FindRows(first, last, [](const float*) {});
      }
      filters_.Clear(s);
      FindRows(first, last, [&](const float* row) { filters_.Add(s, row); });
    });
    return none_to_make_;
  }

  // The rows of keys [first, last), null where none is to be written. Notes the
  // others. Clears none_to_make_ and stops where one is to be made.
  template <class Note>
  void FindRows(int64_t first, int64_t last, Note note) {
    table_->stripes_.AssertReaderHeld();
    FindBlock blocks[2];
    SetBlock(first, last, &blocks[0]);
    ActiveKernels().ask_for_homes(&blocks[0]);
    for (int b = 0; first < last; first += kFindKeys, b = 1 - b) {
      if (!none_to_make_.load(std::memory_order_relaxed)) return;
      FindBlock& block = blocks[b];
      // Its buckets are under way while those of this one are read.
      SetBlock(first + kFindKeys, last, &blocks[1 - b]);
      block.next = &blocks[1 - b];
      const int64_t found =
          FindAskedFor(table_->stripes_, *table_->store_, &block);
      if (!DropUnwritten(first, found, &block)) {
        none_to_make_ = false;
        return;
      }
      for (int64_t i = 0; i < block.n; ++i) {
        if (block.rows[i] != nullptr) note(block.rows[i]);
      }
    }
  }

  void SetBlock(int64_t first, int64_t last, FindBlock* block) {
    first = std::min(first, last);
    SetKeys(*table_->store_, indexes_, keys_.data() + first,
            std::min(kFindKeys, last - first), block);
    block->rows = rows_.data() + first;
  }

  // Sets the rows that are not to be written to null, in a block of which
  // `found` keys were found; returns false where a row is to be made. A row
  // that is there is added to only where the caller knew of it.
  bool DropUnwritten(int64_t first, int64_t found, FindBlock* block) {
    if (writes_.kind == RowWrites::Kind::kUpsert) return found == block->n;
    for (int64_t i = 0; i < block->n; ++i) {
      if (writes_.exists[first + i]) continue;
      if (block->rows[i] == nullptr) return false;
      block->rows[i] = nullptr;
    }
    return true;
  }

  // By a sample of the keys after the first segment.
  bool HasManyRepeats() const {
    if (num_segments_ == 1) return false;
    constexpr int64_t kSample = 256;
    const int64_t step = (n_ - begins_[1]) / kSample;
    int64_t repeats = 0;
    for (int64_t i = 0, s = 1; i < kSample; ++i) {
      const int64_t at = begins_[1] + i * step;
      while (at >= begins_[s + 1]) ++s;
      repeats += MayBeBefore(s, at);
    }
    return repeats * num_segments_ * kLeftOfShare > kSample;
  }

  bool MayBeBefore(int64_t s, int64_t i) const {
    const float* const row = rows_.data()[i];
    return row != nullptr && filters_.IsBefore(s, row);
  }

  int64_t WriteSegment(int64_t s) {
    const int64_t first = begins_[s], last = begins_[s + 1];
    int64_t num_left = 0;
    for (int64_t i = first; s > 0 && i < last; ++i) {
      if (!MayBeBefore(s, i)) continue;
      left_rows_.data()[first + num_left] = rows_.data()[i];
      left_.data()[first + num_left++] = static_cast<uint32_t>(i);
      rows_.data()[i] = nullptr;
    }
    num_left_[s] = num_left;
    WriteBlock block;
    block.rows = const_cast<float**>(rows_.data()) + first;
    block.n = last - first;
    const int64_t nan_rows = Write(first, &block);
    if (writes_.streams) StreamedRows();
    return nan_rows;
  }

  // In the order of the batch.
  int64_t WriteLeft() {
    int64_t nan_rows = 0;
    for (int64_t s = 1; s < num_segments_; ++s) {
      WriteBlock block;
      block.rows = const_cast<float**>(left_rows_.data()) + begins_[s];
      block.positions = left_.data() + begins_[s];
      block.n = num_left_[s];
      nan_rows += Write(0, &block);
    }
    if (writes_.streams) StreamedRows();
    return nan_rows;
  }

  // Given rows are counted from `first` on. How many of the rows have a NaN.
  int64_t Write(int64_t first, WriteBlock* block) {
    const int64_t at = first * table_->dim_;
    block->given = static_cast<const float*>(writes_.rows) + at;
    if (writes_.old_rows != nullptr) {
      block->old = static_cast<const float*>(writes_.old_rows) + at;
    }
    block->dim = table_->dim_;
    block->streams = writes_.streams;
    if (writes_.kind == RowWrites::Kind::kUpsert) {
      return ActiveKernels().copy_rows(*block);
    }
    ActiveKernels().add_rows(*block);
    return 0;
  }

  EmbeddingTable* const table_;
  const absl::Span<const int64_t> keys_;
  const int64_t n_;
  const RowWrites& writes_;
  Executor* const executor_;
  const int64_t num_segments_;
  int64_t begins_[kMostSegments + 1] = {};  // By segment; then n_.
  const StripeIndexes indexes_;
  RowFilters filters_;  // For all segments but the last.
  std::atomic<bool> none_to_make_{true};
  ScratchBuffer<const float*> rows_;  // By key.
  // Keys that are left to the end, by number, and their rows: those of a
  // segment begin where it does.
  ScratchBuffer<uint32_t> left_;
  ScratchBuffer<const float*> left_rows_;
  int64_t num_left_[kMostSegments] = {};
};

bool EmbeddingTable::WriteInOrder(absl::Span<const int64_t> keys,
                                  RowWrites writes, Executor* executor) {
  const bool is_faster =
      writes.kind == RowWrites::Kind::kAccum ||
      (writes.kind == RowWrites::Kind::kUpsert && dim_ >= kLeastUpserted);
  const int64_t n = keys.size();
  if (!is_faster || !type_.is_float32() || touches_ || n < kLeastKeys ||
      n > kMostKeys || NumThreads(executor) > kMostSegments) {
    return false;
  }
  // Where others use the table now, stripe by stripe keeps nobody waiting.
  const ExclusiveLocks locks(stripes_, std::try_to_lock);
  if (!locks.all_held()) return false;
  writes.streams = Streams(writes, n);
  return OrderedWrite(this, keys, writes, executor).Run();
}

}  // namespace tfembed
