// Value and slots of rows as floats, for update rules outside of the core.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/row_writes.h"
#include "cc/core/striped_table.h"

namespace tfembed {
namespace {

constexpr int64_t kKeysPerTask = 1024;

}  // namespace

absl::Status StripedTable::CheckTrained(int64_t width) const {
  const int64_t wanted = dim_ + layout_.slot_words();
  if (!type_.is_trainable()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Rows of ", type_.name(), " cannot be trained."));
  }
  if (width == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "Value and slots of a row have ", wanted, " numbers; got ", width,
      ". An optimizer may have been attached since: look at its slots again."));
}

absl::Status StripedTable::LookupTrained(absl::Span<const int64_t> keys,
                                         int64_t width, float* rows,
                                         Executor* executor) const {
  SharedLocks locks(stripes_);
  const absl::Status status = CheckTrained(width);
  if (!status.ok()) return status;
  const int64_t n = keys.size();
  const int64_t tasks = (n + kKeysPerTask - 1) / kKeysPerTask;
  ParallelFor(executor, tasks, [&](int64_t task) {
    std::vector<float> new_row(layout_.width());
    const int64_t end = std::min(n, (task + 1) * kKeysPerTask);
    for (int64_t i = task * kKeysPerTask; i < end; ++i) {
      const uint64_t hash = HashKey(keys[i]);
      const uint32_t found = stripe(hash).Find(hash, keys[i]);
      const float* row = new_row.data();
      if (found != HashIndex::kNoRow) {
        row = store_->Row(found);
      } else {
        initial_rows_.Fill(keys[i], new_row.data());
        FillNewTail(new_row.data());
      }
      ReadTrained(row, rows + i * width);
    }
  });
  return absl::OkStatus();
}

absl::Status StripedTable::WriteTrained(absl::Span<const int64_t> keys,
                                        int64_t width, const float* rows,
                                        bool add, Executor* executor) {
  return WriteRows(
      keys,
      {add ? RowWrites::Kind::kAddTrained : RowWrites::Kind::kTrained, rows,
       width * static_cast<int64_t>(sizeof(float))},
      executor);
}

void StripedTable::ReadTrained(const float* row, float* to) const {
  type_.ToFloats(row, to, dim_);
  CopyRow(row + layout_.slots_begin(), to + dim_, layout_.slot_words());
}

void StripedTable::WriteTrainedRow(const RowWrites& writes, uint32_t position,
                                   int64_t key, bool is_new, float* row) const {
  const auto* from = reinterpret_cast<const float*>(writes.row(position));
  const int64_t width = dim_ + layout_.slot_words();
  std::vector<float> sum;
  uint64_t occurrence = 0;  // Of a key that is set the last one counts.
  if (writes.kind == RowWrites::Kind::kAddTrained) {
    occurrence = position;
    if (is_new) initial_rows_.Fill(key, row);
    if (type_.is_float32()) {
      AddRow(from, row, width);
      return;
    }
    sum.resize(width);
    ReadTrained(row, sum.data());
    AddRow(from, sum.data(), width);
    from = sum.data();
  }
  writes.rounding.Round(from, dim_, key, occurrence, row);
  CopyRow(from + dim_, row + layout_.slots_begin(), width - dim_);
}

}  // namespace tfembed
