// Upserts and accums of many keys that are all there: about in the order of the
// batch, under the locks of all stripes. Dealt to stripes, as other batches
// are, given rows are read here and there; one after the other they come by
// themselves, and the memory is free to bring the table's.
//
// Two threads must not write one row, and of repeated keys the last one stays.
// So each thread has all keys of some part of the hashes, in the order of the
// batch. (Segments of the batch, with a filter that tells which rows earlier
// ones have, took a tenth longer: a thread that wakes late has a whole segment
// before it, and dealing takes less than the filters did.)
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "cc/core/simd/dispatch.h"
#include "cc/core/support/row_copy.h"
#include "cc/core/support/scratch_buffer.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/table/row_writes.h"
#include "cc/core/table/table_stripe.h"

namespace tfembed {
namespace {

// The keys of a batch. Fewer are dealt to stripes as fast; with more keys their
// addresses do not stay in a core's cache.
constexpr int64_t kLeastKeys = 8192;
constexpr int64_t kMostKeys = int64_t{1} << 17;
static_assert(kMostKeys <= EmbeddingTable::kKeysAtOnce);

// A thread has at most so many times its share of the keys; where keys repeat
// so often that one has more, stripes deal the work better.
constexpr double kMostOfShare = 1.125;

}  // namespace

class EmbeddingTable::OrderedWrite {
 public:
  // REQUIRES: the caller has locked all stripes; at most DealBlock::kMostGroups
  // threads.
  OrderedWrite(EmbeddingTable* table, absl::Span<const int64_t> keys,
               const RowWrites& writes, Executor* executor)
      : table_(table),
        keys_(keys),
        writes_(writes),
        executor_(executor),
        num_groups_(NumThreads(executor)),
        indexes_(table->stripes_.Indexes()) {}

  // False: nothing was written.
  bool Run() {
    try {
      rows_.Resize(keys_.size());
      if (num_groups_ > 1) positions_.Resize(keys_.size());
    } catch (const std::bad_alloc&) {
      return false;
    }
    // A batch that brings new keys mostly has one among the first.
    FindRows({nullptr, 0, std::min<int64_t>(kFindKeys, keys_.size())});
    if (!none_to_make_ || !Deal()) return false;
    ParallelFor(executor_, num_groups_, [&](int64_t g) {
      ForEachPart(g, [&](const Part& part) { FindRows(part); });
    });
    if (!none_to_make_) return false;
    std::atomic<int64_t> nan_rows{0};
    ParallelFor(executor_, num_groups_, [&](int64_t g) {
      int64_t own = 0;
      ForEachPart(g, [&](const Part& part) { own += Write(part); });
      if (writes_.streams) StreamedRows();
      nan_rows += own;
    });
    table_->nan_rows_.Add(nan_rows);
    return true;
  }

 private:
  static constexpr int64_t kChunk = DealBlock::kMostKeys;
  static constexpr int64_t kMostChunks = kMostKeys / kChunk;

  // Keys of a group, in the order of the batch.
  struct Part {
    const uint32_t* positions;  // Null: first, first + 1, ...
    int64_t first;              // Where the part's rows are in rows_.
    int64_t size;

    int64_t position(int64_t i) const {
      return positions == nullptr ? first + i : positions[i];
    }
  };

  // False where a group would have too many keys.
  bool Deal() {
    if (num_groups_ == 1) return true;
    ParallelFor(executor_, NumChunks(), [&](int64_t c) { DealChunk(c); });
    for (int g = 0; g < num_groups_; ++g) {
      int64_t size = 0;
      ForEachPart(g, [&](const Part& part) { size += part.size; });
      if (size * num_groups_ > kMostOfShare * keys_.size()) return false;
    }
    return true;
  }

  int64_t NumChunks() const { return (keys_.size() + kChunk - 1) / kChunk; }

  void DealChunk(int64_t c) {
    const int64_t first = c * kChunk;
    DealBlock block;
    block.keys = keys_.data() + first;
    block.n = std::min<int64_t>(kChunk, keys_.size() - first);
    block.num_groups = num_groups_;
    block.first_position = static_cast<uint32_t>(first);
    ActiveKernels().deal_keys(&block);
    int64_t at = first;
    for (int g = 0; g < num_groups_; ++g) {
      begins_[c][g] = at;
      std::copy_n(block.positions[g], block.sizes[g], positions_.data() + at);
      at += block.sizes[g];
    }
    begins_[c][num_groups_] = at;
  }

  // In the order of the batch.
  template <class Visit>
  void ForEachPart(int64_t g, Visit visit) {
    if (num_groups_ == 1) {
      return visit(Part{nullptr, 0, static_cast<int64_t>(keys_.size())});
    }
    for (int64_t c = 0; c < NumChunks(); ++c) {
      const int64_t first = begins_[c][g];
      visit(Part{positions_.data() + first, first, begins_[c][g + 1] - first});
    }
  }

  // The rows of the keys, null where none is to be written. Clears
  // none_to_make_ and stops where one is to be made.
  void FindRows(const Part& part) {
    table_->stripes_.AssertReaderHeld();
    FindBlock blocks[2];
    int64_t keys[2][kFindKeys];
    SetBlock(part, 0, keys[0], &blocks[0]);
    ActiveKernels().ask_for_homes(&blocks[0]);
    for (int64_t begin = 0, b = 0; begin < part.size;
         begin += kFindKeys, b = 1 - b) {
      if (!none_to_make_.load(std::memory_order_relaxed)) return;
      FindBlock& block = blocks[b];
      // Its buckets are under way while those of this one are read.
      SetBlock(part, begin + kFindKeys, keys[1 - b], &blocks[1 - b]);
      block.next = &blocks[1 - b];
      const int64_t found =
          FindAskedFor(table_->stripes_, *table_->store_, &block);
      if (!DropUnwritten(part, begin, found, &block)) {
        none_to_make_ = false;
        return;
      }
    }
  }

  // The keys of a part from `begin` on; none where it ends before.
  void SetBlock(const Part& part, int64_t begin, int64_t* keys,
                FindBlock* block) {
    begin = std::min(begin, part.size);
    const int64_t n = std::min(kFindKeys, part.size - begin);
    const int64_t* of_block = keys_.data() + part.first + begin;
    if (part.positions != nullptr) {
      for (int64_t i = 0; i < n; ++i) {
        keys[i] = keys_[part.positions[begin + i]];
      }
      of_block = keys;
    }
    SetKeys(*table_->store_, indexes_, of_block, n, block);
    block->rows = rows_.data() + part.first + begin;
  }

  // Sets the rows that are not to be written to null, in a block of which
  // `found` keys were found; returns false where a row is to be made. A row
  // that is there is added to only where the caller knew of it.
  bool DropUnwritten(const Part& part, int64_t begin, int64_t found,
                     FindBlock* block) {
    if (writes_.kind == RowWrites::Kind::kUpsert) return found == block->n;
    for (int64_t i = 0; i < block->n; ++i) {
      if (writes_.exists[part.position(begin + i)]) continue;
      if (block->rows[i] == nullptr) return false;
      block->rows[i] = nullptr;
    }
    return true;
  }

  // How many of the rows have a NaN.
  int64_t Write(const Part& part) {
    WriteBlock block;
    block.rows = const_cast<float**>(rows_.data()) + part.first;
    block.positions = part.positions;
    block.asks = true;
    block.n = part.size;
    block.given = static_cast<const float*>(writes_.rows);
    block.old = static_cast<const float*>(writes_.old_rows);
    block.dim = table_->dim_;
    block.streams = writes_.streams;
    if (writes_.kind == RowWrites::Kind::kUpsert) {
      return ActiveKernels().copy_rows(block);
    }
    ActiveKernels().add_rows(block);
    return 0;
  }

  EmbeddingTable* const table_;
  const absl::Span<const int64_t> keys_;
  const RowWrites& writes_;
  Executor* const executor_;
  const int num_groups_;
  const StripeIndexes indexes_;
  std::atomic<bool> none_to_make_{true};
  // The keys by number, chunk by chunk, and in a chunk group by group; where
  // the groups of each chunk begin, and the last one ends; and their rows.
  ScratchBuffer<uint32_t> positions_;
  int64_t begins_[kMostChunks][DealBlock::kMostGroups + 1];
  ScratchBuffer<const float*> rows_;
};

bool EmbeddingTable::WriteInOrder(absl::Span<const int64_t> keys,
                                  RowWrites writes, Executor* executor) {
  const bool is_one = writes.kind == RowWrites::Kind::kAccum ||
                      writes.kind == RowWrites::Kind::kUpsert;
  const int64_t n = keys.size();
  if (!is_one || !type_.is_float32() || touches_ || n < kLeastKeys ||
      n > kMostKeys || NumThreads(executor) > DealBlock::kMostGroups) {
    return false;
  }
  const ExclusiveLocks locks(stripes_);
  writes.streams = Streams(writes, n);
  return OrderedWrite(this, keys, writes, executor).Run();
}

}  // namespace tfembed
