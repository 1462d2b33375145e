#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "absl/strings/str_cat.h"
#include "cc/core/row_writes.h"
#include "cc/core/striped_table.h"
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
                                 const void* values, const void* old_values,
                                 const bool* exists, Executor* executor) {
  if (!type_.has_addition()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Rows of ", type_.name(), " cannot be added to; upsert them."));
  }
  return WriteRows(keys,
                   {RowWrites::Kind::kAccum, values, layout_.value_bytes(),
                    exists, old_values},
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
  if (WriteInOrder(keys, writes, executor)) return absl::OkStatus();
  return WriteHeld(keys, writes, /*bound=*/nullptr, executor);
}

// Whether rows of a batch of n go past the caches: new ones, whose memory
// nobody has read yet, and others as far as that is no slower (simd/write.inc).
// What is added to is read first, and as fast the ordinary way. REQUIRES: the
// caller holds batches_.
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
  if (!status.ok()) return status;
  const int64_t rows = bound == nullptr ? keys.size() : 0;
  const absl::StatusOr<int64_t> fresh = store_->Promise(rows);
  if (!fresh.ok()) return fresh.status();
  Reservations reservations;
  status =
      ReserveGroups(*partition, writes, bound, *fresh, executor, &reservations);
  if (status.ok()) {
    if (bound != nullptr) bound->MakeRoom();
    ParallelFor(executor, kNumStripes, [&](int64_t i) {
      const int s = reservations.order[i];
      if (reservations.keys[s] < 0) return;
      std::lock_guard<std::shared_mutex> lock(stripes_[s].mutex());
      stripes_[s].Grow();
      float** const room =
          written == nullptr ? nullptr : &written[partition->begin(s)];
      WriteGroup(partition->group(s), writes, room, &stripes_[s]);
      stripes_[s].Release(reservations.keys[s]);
    });
  }
  store_->Withdraw(rows);
  return status;
}

}  // namespace tfembed
