// Writes to tables of bounded size.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <new>
#include <utility>
#include <vector>

#include "cc/core/row_writes.h"
#include "cc/core/striped_table.h"
#include "cc/core/table_bound.h"

namespace tfembed {
namespace {

// Where the keys begin that stay when all are written in order to a table that
// has room for `max_size`: those behind it are no more distinct ones.
int64_t FirstThatStays(absl::Span<const int64_t> keys, int64_t max_size) {
  const int64_t n = keys.size();
  if (n <= max_size) return 0;
  std::vector<std::pair<int64_t, int64_t>> places(n);  // Key, position.
  for (int64_t i = 0; i < n; ++i) places[i] = {keys[i], i};
  std::sort(places.begin(), places.end());
  std::vector<int64_t> last;  // Where each key comes last.
  for (int64_t i = 0; i < n; ++i) {
    if (i + 1 < n && places[i + 1].first == places[i].first) continue;
    last.push_back(places[i].second);
  }
  if (static_cast<int64_t>(last.size()) <= max_size) return 0;
  std::nth_element(last.begin(), last.begin() + max_size - 1, last.end(),
                   std::greater<int64_t>());
  return last[max_size - 1];
}

}  // namespace

// Cuts an import down to what stays of it, and pins the batch. Throws
// std::bad_alloc.
absl::Status StripedTable::PinWrites(Bound* bound, RowWrites* writes,
                                     absl::Span<const int64_t>* keys) const {
  if (writes->kind == RowWrites::Kind::kImport) {
    const int64_t begin = FirstThatStays(*keys, max_size_);
    writes->rows = writes->row(begin);
    keys->remove_prefix(begin);
  }
  if (writes->kind != RowWrites::Kind::kAccum) return bound->Pin(*keys);
  std::vector<int64_t> inserts;
  for (size_t i = 0; i < keys->size(); ++i) {
    if (writes->Inserts(i)) inserts.push_back((*keys)[i]);
  }
  return bound->Pin(*keys, inserts);
}

absl::Status StripedTable::WriteBounded(absl::Span<const int64_t> keys,
                                        RowWrites writes, Executor* executor) {
  Bound bound(this, /*trains=*/false);
  absl::Status status;
  try {
    status = PinWrites(&bound, &writes, &keys);
  } catch (const std::bad_alloc&) {
    status = NoMemoryToPin(keys.size());
  }
  if (!status.ok()) return status;
  return WriteHeld(keys, writes, &bound, executor);
}

}  // namespace tfembed
