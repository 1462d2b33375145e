#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/row_writes.h"
#include "cc/core/striped_table.h"
#include "cc/core/support/has_nan.h"
#include "cc/core/support/overlap.h"
#include "cc/core/table_bound.h"

namespace tfembed {
namespace {

// Below this many keys waking threads costs more than it saves.
constexpr int64_t kParallelFrom = 1024;

absl::Status NoMemoryToCount(int64_t keys) {
  return absl::ResourceExhaustedError(
      absl::StrCat("No memory to note which rows a batch of ", keys,
                   " keys writes; nothing was changed. Split it."));
}

Executor* ForBatch(int64_t keys, Executor* executor) {
  return keys < kParallelFrom ? nullptr : executor;
}

}  // namespace

absl::Status StripedTable::Upsert(absl::Span<const int64_t> keys,
                                  const void* values, Executor* executor) {
  return WriteRows(keys,
                   {RowWrites::Kind::kUpsert, values, layout_.value_bytes()},
                   executor);
}

absl::Status StripedTable::Accum(absl::Span<const int64_t> keys,
                                 const void* values, const bool* exists,
                                 Executor* executor) {
  if (!type_.has_addition()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Rows of ", type_.name(), " cannot be added to; upsert them."));
  }
  return WriteRows(
      keys, {RowWrites::Kind::kAccum, values, layout_.value_bytes(), exists},
      executor);
}

absl::Status StripedTable::Import(absl::Span<const int64_t> keys, int64_t width,
                                  const float* full_rows, Executor* executor) {
  return WriteRows(
      keys,
      {RowWrites::Kind::kImport, full_rows, width * RowLayout::kWordBytes},
      executor);
}

// REQUIRES: the caller holds batches_.
absl::Status StripedTable::CheckFullWidth(int64_t width) const {
  if (width == layout_.width()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "A full row has ", layout_.width(), " words; got ", width,
      ". An optimizer may have been attached since: read the rows again."));
}

absl::Status StripedTable::WriteRows(absl::Span<const int64_t> keys,
                                     RowWrites writes, Executor* executor) {
  // Rows that are brought in from elsewhere are no step of the table's own.
  writes.now = writes.kind == RowWrites::Kind::kImport ? Now() : Tick();
  writes.rounding = Rounding(writes.now);
  if (keys.empty()) return absl::OkStatus();
  if (max_size_ > 0) return WriteBounded(keys, writes, executor);
  std::shared_lock<std::shared_mutex> batch(batches_);
  return WriteHeld(keys, writes, /*bound=*/nullptr, executor);
}

// Whether the new rows of a batch of n go past the caches: memory that nobody
// has read yet. (Rows that are there are faster the ordinary way: lines written
// past the caches wait for the memory one after the other, where those that
// were asked for are under way together.) REQUIRES: the caller holds batches_.
bool StripedTable::Streams(const RowWrites& writes, int64_t n) const {
  if (writes.kind != RowWrites::Kind::kUpsert &&
      writes.kind != RowWrites::Kind::kImport) {
    return false;
  }
  // Rows begin at lines if their width is one of whole lines.
  const int64_t row_bytes = layout_.width() * RowLayout::kWordBytes;
  return !touches_ && row_bytes % kLineBytes == 0 &&
         StreamsRows(writes.bytes, n);
}

// Whatever can fail comes before `bound`, where there is one, makes room.
absl::Status StripedTable::WriteHeld(absl::Span<const int64_t> keys,
                                     RowWrites writes, Bound* bound,
                                     Executor* executor) {
  executor = ForBatch(keys.size(), executor);
  writes.streams = Streams(writes, keys.size());
  absl::StatusOr<KeyPartition> partition = KeyPartition::Create(keys, executor);
  if (!partition.ok()) return partition.status();

  absl::Status status;
  if (writes.is_trained()) status = CheckTrained(writes.bytes / sizeof(float));
  if (writes.kind == RowWrites::Kind::kImport) {
    status = CheckFullWidth(writes.bytes / RowLayout::kWordBytes);
  }
  std::unique_ptr<float*[]> written;  // For WriteGroup.
  if (touches_ && eviction_->counts()) {
    written.reset(new (std::nothrow) float*[keys.size()]);
    if (written == nullptr) return NoMemoryToCount(keys.size());
  }
  const int64_t rows = bound == nullptr ? keys.size() : 0;
  if (status.ok()) status = store_->Promise(rows);
  if (!status.ok()) return status;
  Reservations reservations;
  reservations.fill(-1);
  status = ReserveGroups(*partition, writes, bound, executor, &reservations);
  const bool has_room = status.ok();
  if (has_room && bound != nullptr) bound->MakeRoom();
  ParallelFor(executor, kNumStripes, [&](int64_t s) {
    if (reservations[s] < 0) return;
    std::lock_guard<std::shared_mutex> lock(stripes_[s].mutex());
    if (has_room) {
      float** const room =
          written == nullptr ? nullptr : &written[partition->begin(s)];
      WriteGroup(partition->group(s), writes, room, &stripes_[s]);
    }
    stripes_[s].Release(reservations[s]);
  });
  store_->Withdraw(rows);
  return status;
}

namespace {

// What is to be done with a row, once the memory has brought it.
struct PendingWrite {
  enum class Action { kNone, kCopy, kCopyToNew, kAdd };

  const HashIndex::Bucket* home;
  Action action;
  float* to;
};

}  // namespace

void StripedTable::AddValue(const RowWrites& writes, uint32_t position,
                            int64_t key, float* row) const {
  const char* const from = writes.row(position);
  if (type_.is_float32()) {
    AddRow(reinterpret_cast<const float*>(from), row, dim_);
  } else if (!writes.rounding.by_chance()) {
    type_.Add(from, row, dim_);
  } else {
    std::vector<float> sum(dim_), added(dim_);
    type_.ToFloats(row, sum.data(), dim_);
    type_.ToFloats(from, added.data(), dim_);
    AddRow(added.data(), sum.data(), dim_);
    writes.rounding.Round(sum.data(), dim_, key, position, row);
  }
}

// Keys are settled and written in the order of the batch: the last one wins.
void StripedTable::WriteGroup(const KeyGroup& group, const RowWrites& writes,
                              float** written, TableStripe* stripe) {
  using Action = PendingWrite::Action;
  RowStore* const store = store_.get();
  const HashIndex& index = stripe->index();
  const bool accum = writes.kind == RowWrites::Kind::kAccum;
  const bool whole_row = writes.kind == RowWrites::Kind::kImport;
  const bool touches = touches_;
  const int64_t words =
      touches ? layout_.width() : (writes.bytes + 3) / RowLayout::kWordBytes;
  // Rows of many lines leave no room in the first cache for buckets to come.
  const bool wide = words * RowLayout::kWordBytes >= 4 * kLineBytes;
  const bool looks_for_nan =
      writes.kind == RowWrites::Kind::kUpsert && type_.is_float32();
  int64_t nan_rows = 0;
  const bool touches_later = touches && eviction_->counts();
  int64_t num_written = 0;
  const auto note = [&](float* row) {
    whole_row ? TakeNote(writes.now, row) : Touch(writes.now, row);
  };
  PendingWrite pending[kOverlap];
  const auto from = [&](int64_t i) { return writes.row(group.positions[i]); };
  const auto set_row = [&](int64_t i, uint32_t row, Action action) {
    PendingWrite& write = pending[Slot(i)];
    write.action = action;
    write.to = store->Row(row);
    if (!writes.streams || action != Action::kCopyToNew) {
      PrefetchRow<true>(write.to, words);
    }
  };
  // A key that is there.
  const auto set_present = [&](int64_t i, uint32_t row) {
    set_row(i, row,
            !accum                              ? Action::kCopy
            : writes.exists[group.positions[i]] ? Action::kAdd
                                                : Action::kNone);
  };
  Overlap(
      group.size,
      [&](int64_t i) {
        pending[Slot(i)].home = index.Home(HashKey(group.keys[i]));
        if (wide) {
          __builtin_prefetch(pending[Slot(i)].home, 0, /*locality=*/2);
        } else {
          __builtin_prefetch(pending[Slot(i)].home);
        }
      },
      [&](int64_t i) {
        PendingWrite& write = pending[Slot(i)];
        write.action = Action::kNone;
        const uint32_t row = HashIndex::FindIn(*write.home, group.keys[i]);
        if (row != HashIndex::kNoRow) {
          set_present(i, row);
          write.home = nullptr;  // Settled.
        } else if (write.home->overflow != 0) {
          __builtin_prefetch(write.home + 1);
        }
      },
      [&](int64_t i) {
        // Not before: its lines would take the place of rows in the table.
        PrefetchRow<false>(from(i), words);
        if (pending[Slot(i)].home == nullptr) return;
        const int64_t key = group.keys[i];
        bool inserted = false;
        const uint32_t row =
            writes.Inserts(group.positions[i])
                ? stripe->FindOrInsert(HashKey(key), key, store, &inserted)
                : stripe->Find(HashKey(key), key);
        if (inserted) {
          set_row(i, row, Action::kCopyToNew);
        } else if (row != HashIndex::kNoRow) {
          set_present(i, row);
        }
      },
      [&](int64_t i) {
        const PendingWrite& write = pending[Slot(i)];
        if (write.action == Action::kNone) return;
        const bool is_new = write.action == Action::kCopyToNew;
        if (is_new && !whole_row) FillNewTail(write.to);
        if (write.action == Action::kAdd) {
          AddValue(writes, group.positions[i], group.keys[i], write.to);
        } else if (writes.is_trained()) {
          WriteTrainedRow(writes, group.positions[i], group.keys[i], is_new,
                          write.to);
        } else if (is_new && writes.streams) {
          StreamRow(from(i), write.to, writes.bytes);
          if (looks_for_nan) {
            nan_rows += HasNan(reinterpret_cast<const float*>(from(i)), dim_);
          }
        } else if (looks_for_nan) {
          nan_rows += CopyRowHasNan(reinterpret_cast<const float*>(from(i)),
                                    write.to, dim_);
        } else {
          CopyBytes(from(i), write.to, writes.bytes);
        }
        if (touches) {
          if (touches_later) {
            written[num_written++] = write.to;
          } else {
            note(write.to);
          }
        }
      });
  if (writes.streams) StreamedRows();
  nan_rows_.Add(nan_rows);
  if (!touches_later) return;
  std::sort(written, written + num_written);  // Once each, repeated or not.
  float** const end = std::unique(written, written + num_written);
  for (float** row = written; row < end; ++row) note(*row);
}

}  // namespace tfembed
