// A batch's rows of one stripe: found or made, and written. A key costs two
// misses, its bucket and its row: the keys of a block are all looked for before
// the first of its rows is written, as those of lookups are (table_find.h), and
// the next block's buckets are asked for meanwhile.
#include <algorithm>
#include <vector>

#include "cc/core/row_writes.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/striped_table.h"
#include "cc/core/support/prefetch.h"
#include "cc/core/table_find.h"

namespace tfembed {

// Some keys of a group, and the rows that they have.
struct StripedTable::GroupBlock {
  KeyGroup keys;           // Up to kFindKeys.
  int64_t num_ahead = 0;   // So many more keys follow in the group.
  FindBlock find;          // With their homes.
  float* rows[kFindKeys];  // Where a given row goes; null: nowhere.
  bool is_new[kFindKeys];  // Such rows hold nothing yet.
};

void StripedTable::WriteGroup(const KeyGroup& group, const RowWrites& writes,
                              float** written, TableStripe* stripe) {
  using Kind = RowWrites::Kind;
  const bool by_kernel = type_.is_float32() && (writes.kind == Kind::kUpsert ||
                                                writes.kind == Kind::kAccum);
  const bool touches_later = touches_ && eviction_->counts();
  const auto note = [&](float* row) {
    writes.kind == Kind::kImport ? TakeNote(writes.now, row)
                                 : Touch(writes.now, row);
  };
  for (int64_t i = 0; i < std::min(WriteBlock::kGivenAhead, group.size); ++i) {
    AskForGiven(writes, group.positions[i]);
  }
  int64_t nan_rows = 0;
  int64_t num_written = 0;
  GroupBlock blocks[2];
  BeginBlock(group, 0, *stripe, &blocks[0]);
  for (int64_t i = 0; i < blocks[0].find.n; ++i) {
    PrefetchBucket(blocks[0].find.homes[i]);
  }
  for (int64_t begin = 0; begin < group.size; begin += kFindKeys) {
    GroupBlock& block = blocks[begin / kFindKeys % 2];
    GroupBlock& next = blocks[(begin / kFindKeys + 1) % 2];
    FindOrMakeRows(writes, stripe, &block);
    BeginBlock(group, begin + kFindKeys, *stripe, &next);
    nan_rows += by_kernel ? WriteByKernel(writes, block, next)
                          : WriteRowByRow(writes, block, next);
    const int64_t n = block.keys.size;
    for (int64_t i = 0; touches_ && i < n; ++i) {
      float* const row = block.rows[i];
      if (row == nullptr) continue;
      touches_later ? static_cast<void>(written[num_written++] = row)
                    : note(row);
    }
  }
  if (writes.streams) StreamedRows();
  nan_rows_.Add(nan_rows);
  if (!touches_later) return;
  std::sort(written, written + num_written);  // Once each, repeated or not.
  float** const end = std::unique(written, written + num_written);
  for (float** row = written; row < end; ++row) note(*row);
}

// The keys of a group from `begin` on; none where it ends before.
void StripedTable::BeginBlock(const KeyGroup& group, int64_t begin,
                              const TableStripe& stripe,
                              GroupBlock* block) const {
  begin = std::min(begin, group.size);
  const int64_t n = std::min(kFindKeys, group.size - begin);
  block->keys = {group.keys + begin, group.positions + begin, n};
  block->num_ahead = group.size - begin - n;
  block->find.keys = block->keys.keys;
  block->find.n = n;
  block->find.addresses = store_->addresses();
  block->find.rows = const_cast<const float**>(block->rows);
  for (int64_t i = 0; i < n; ++i) {
    block->find.homes[i] = stripe.index().Home(HashKey(block->keys.keys[i]));
  }
}

// In the order of the batch: of a new key that comes twice the first one makes
// the row, and the last one, which is written last, wins.
void StripedTable::FindOrMakeRows(const RowWrites& writes, TableStripe* stripe,
                                  GroupBlock* block) {
  const KeyGroup& keys = block->keys;
  const bool accum = writes.kind == RowWrites::Kind::kAccum;
  const int64_t s = stripe - stripes_.data();
  FindBlock& find = block->find;
  find.floats_to_fetch = FloatsToFetch(writes);
  const int64_t num_unsettled = ActiveKernels().find_at_homes(&find);
  AskPastHomes(find, num_unsettled);
  std::fill_n(block->is_new, keys.size, false);
  for (int64_t j = 0; j < num_unsettled; ++j) {
    const int32_t i = find.unsettled[j];
    const int64_t key = keys.keys[i];
    const uint64_t hash = HashKey(key);
    const uint32_t row =
        writes.Inserts(keys.positions[i])
            ? stripe->FindOrInsert(hash, key, store_.get(), &block->is_new[i])
            : stripe->Find(hash, key);
    block->rows[i] = row == HashIndex::kNoRow ? nullptr : store_->Row(row);
    if (!block->is_new[i]) continue;
    if (filters_[s] != nullptr) filters_[s]->Forget(hash, key);
    if (writes.kind != RowWrites::Kind::kImport) FillNewTail(block->rows[i]);
  }
  // What is there is added to only where the caller knew of it.
  for (int64_t i = 0; accum && i < keys.size; ++i) {
    if (!block->is_new[i] && !writes.exists[keys.positions[i]]) {
      block->rows[i] = nullptr;
    }
  }
}

// Of each row that is found, before it is written: not those that are asked
// for later (WriteBlock) or not read at all.
int64_t StripedTable::FloatsToFetch(const RowWrites& writes) const {
  if (touches_) return layout_.width();
  const bool unread = writes.kind == RowWrites::Kind::kUpsert &&
                      writes.streams && ActiveKernels().streams_old_rows;
  return unread || dim_ > WriteBlock::kFewFloats ? 0 : dim_;
}

int64_t StripedTable::WriteByKernel(const RowWrites& writes,
                                    const GroupBlock& block,
                                    const GroupBlock& next) const {
  WriteBlock write;
  write.rows = block.rows;
  write.is_new = block.is_new;
  write.positions = block.keys.positions;
  write.n = block.keys.size;
  write.num_ahead = block.num_ahead;
  write.given = static_cast<const float*>(writes.rows);
  write.old = static_cast<const float*>(writes.old_rows);
  write.dim = dim_;
  write.streams = writes.streams;
  write.next_homes = next.find.homes;
  write.num_next = next.find.n;
  const Kernels& kernels = ActiveKernels();
  if (writes.kind == RowWrites::Kind::kUpsert) return kernels.copy_rows(write);
  kernels.add_rows(write);
  return 0;
}

void StripedTable::AskForGiven(const RowWrites& writes,
                               uint32_t position) const {
  const int64_t words =
      (writes.bytes + RowLayout::kWordBytes - 1) / RowLayout::kWordBytes;
  PrefetchRow(writes.row(position), words);
  if (writes.old_rows != nullptr) PrefetchRow(writes.old_row(position), words);
}

int64_t StripedTable::WriteRowByRow(const RowWrites& writes,
                                    const GroupBlock& block,
                                    const GroupBlock& next) const {
  using Kind = RowWrites::Kind;
  const KeyGroup& keys = block.keys;
  int64_t nan_rows = 0;
  for (int64_t i = 0; i < keys.size; ++i) {
    constexpr int64_t kAhead = WriteBlock::kRowsAhead;
    if (i + kAhead < keys.size && block.rows[i + kAhead] != nullptr) {
      PrefetchRow(block.rows[i + kAhead], dim_);
    }
    if (i + WriteBlock::kGivenAhead < keys.size + block.num_ahead) {
      AskForGiven(writes, keys.positions[i + WriteBlock::kGivenAhead]);
    }
    if (i < next.find.n) PrefetchBucket(next.find.homes[i]);
    float* const row = block.rows[i];
    if (row == nullptr) continue;
    const uint32_t position = keys.positions[i];
    const char* const from = writes.row(position);
    if (writes.kind == Kind::kUpsert) nan_rows += type_.HasNan(from, dim_);
    if (writes.is_trained()) {
      WriteTrainedRow(writes, position, keys.keys[i], block.is_new[i], row);
    } else if (writes.kind == Kind::kAccum && !block.is_new[i]) {
      AddValue(writes, position, keys.keys[i], row);
    } else if (writes.streams && block.is_new[i]) {
      StreamRow(from, row, writes.bytes);
    } else {
      CopyBytes(from, row, writes.bytes);
    }
  }
  return nan_rows;
}

void StripedTable::AddValue(const RowWrites& writes, uint32_t position,
                            int64_t key, float* row) const {
  const char* const from = writes.row(position);
  const char* const old =
      writes.old_rows == nullptr ? nullptr : writes.old_row(position);
  if (!writes.rounding.by_chance()) {
    old == nullptr ? type_.Add(from, row, dim_)
                   : type_.AddChange(from, old, row, dim_);
    return;
  }
  std::vector<float> sum(dim_), added(dim_);
  type_.ToFloats(row, sum.data(), dim_);
  type_.ToFloats(from, added.data(), dim_);
  AddRow(added.data(), sum.data(), dim_);
  if (old != nullptr) {
    type_.ToFloats(old, added.data(), dim_);
    for (int64_t c = 0; c < dim_; ++c) sum[c] -= added[c];
  }
  writes.rounding.Round(sum.data(), dim_, key, position, row);
}

}  // namespace tfembed
