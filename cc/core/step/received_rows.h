#ifndef TFEMBED_CORE_STEP_RECEIVED_ROWS_H_
#define TFEMBED_CORE_STEP_RECEIVED_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cc/core/rows/rows.h"
#include "cc/core/rows/value_type.h"

namespace tfembed {

// The rows of one table that its owners sent, by place (RowRequest). Borrows
// their memory. Immutable once all rows were appended.
class ReceivedRows final : public RowSource {
 public:
  ReceivedRows(int64_t dim, ValueType type) : dim_(dim), type_(type) {}

  // Appends the rows of the next shard, as many as there are in `bytes`.
  void Append(absl::Span<const char> bytes) {
    const int64_t row_bytes = dim_ * type_.size();
    for (size_t at = 0; at < bytes.size(); at += row_bytes) {
      // Of another dtype, where type() says so.
      rows_.push_back(reinterpret_cast<const float*>(bytes.data() + at));
    }
  }

  int64_t dim() const override { return dim_; }
  ValueType type() const override { return type_; }

  absl::StatusOr<int64_t> Locate(const int64_t* places, int64_t n,
                                 const float** rows) const override {
    for (int64_t i = 0; i < n; ++i) {
      if (static_cast<uint64_t>(places[i]) >= rows_.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("Place ", places[i], " is not among the ",
                         rows_.size(), " rows that were received."));
      }
      rows[i] = rows_[places[i]];
    }
    return 0;
  }

  // Every place that Locate lets pass has a row.
  void FillMissing(int64_t /*place*/, float* row) const override {
    for (int64_t c = 0; c < dim_; ++c) row[c] = 0;
  }

 private:
  const int64_t dim_;
  const ValueType type_;
  std::vector<const float*> rows_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_RECEIVED_ROWS_H_
