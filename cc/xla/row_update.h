#ifndef TFEMBED_XLA_ROW_UPDATE_H_
#define TFEMBED_XLA_ROW_UPDATE_H_

#include <cstdint>
#include <vector>

#include "cc/core/optimizers/update_rule.h"
#include "cc/xla/builder.h"

namespace tfembed {

// The rows of stacked tables and their slots on a replica, and a step's counts.
struct TrainedRows {
  xla::XlaOp values;              // [rows, width]
  std::vector<xla::XlaOp> slots;  // [rows, width], or [rows, 1]
  xla::XlaOp nonfinite;           // [tables]

  std::vector<xla::XlaOp> Flat() const;
  static TrainedRows FromFlat(absl::Span<const xla::XlaOp> flat);
};

// The options of an update of rows.
struct RowTraining {
  const UpdateRule* rule = nullptr;
  std::vector<int64_t> table_rows;  // By table, in the stack's order.
  bool skip_nonfinite = true;
};

// Applies the rule once to each of `rows` [n], distinct or kNone, by
// `gradients` [n, width].
TrainedRows UpdateRows(const RowTraining& training, xla::XlaOp learning_rate,
                       xla::XlaOp rows, xla::XlaOp gradients,
                       TrainedRows state);

// Applies the rule to ascending `rows` [n], possibly repeated, one after
// another.
TrainedRows UpdateOccurrences(const RowTraining& training,
                              xla::XlaOp learning_rate, xla::XlaOp rows,
                              xla::XlaOp gradients, TrainedRows state);

// Applies the rule to all rows by `gradients` [rows, width].
TrainedRows UpdateAllRows(const RowTraining& training, xla::XlaOp learning_rate,
                          xla::XlaOp gradients, TrainedRows state);

}  // namespace tfembed

#endif  // TFEMBED_XLA_ROW_UPDATE_H_
