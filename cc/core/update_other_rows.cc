#include "cc/core/update_other_rows.h"

#include <algorithm>

#include "cc/core/narrow_update.h"

namespace tfembed {
namespace {

// Which of ascending ids stand in a sorted list.
class AscendingMembers {
 public:
  explicit AscendingMembers(const std::vector<int64_t>& ids) : ids_(ids) {}

  bool Has(int64_t id) {
    if (!found_first_) {
      next_ = std::lower_bound(ids_.begin(), ids_.end(), id);
      found_first_ = true;
    }
    while (next_ != ids_.end() && *next_ < id) ++next_;
    return next_ != ids_.end() && *next_ == id;
  }

 private:
  const std::vector<int64_t>& ids_;
  std::vector<int64_t>::const_iterator next_;
  bool found_first_ = false;
};

}  // namespace

void UpdateOtherRows(const TableUpdate& table, std::vector<int64_t> touched,
                     Executor* executor) {
  std::sort(touched.begin(), touched.end());
  RowSink* const sink = table.sink;
  const int64_t dim = sink->dim();
  const bool is_ascending = sink->rank_limit() != 0;
  const std::vector<float> zeros(kVisitRows * dim, 0);
  ParallelFor(executor, sink->num_slices(), [&](int64_t slice) {
    AscendingMembers members(touched);
    NarrowUpdate narrow(*table.rule, table.learning_rate, dim,
                        sink->rounding());
    sink->VisitSlice(slice, [&](absl::Span<int64_t> ids, MutableRow* rows) {
      int64_t n = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool is_touched =
            is_ascending
                ? members.Has(ids[i])
                : std::binary_search(touched.begin(), touched.end(), ids[i]);
        if (is_touched) continue;
        ids[n] = ids[i];
        rows[n++] = rows[i];
      }
      if (sink->rounding().type().is_float32()) {
        table.rule->Apply(rows, zeros.data(), n, dim, table.learning_rate);
      } else {
        narrow.Apply(ids.data(), rows, zeros.data(), n);
      }
    });
  });
}

}  // namespace tfembed
