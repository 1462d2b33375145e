// Value and slots of rows as floats, for update rules outside of the core.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
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

void StripedTable::ReadTrained(const float* row, float* to) const {
  type_.ToFloats(row, to, dim_);
  CopyRow(row + layout_.slots_begin(), to + dim_, layout_.slot_words());
}

}  // namespace tfembed
