#ifndef TFEMBED_XLA_EXCHANGE_H_
#define TFEMBED_XLA_EXCHANGE_H_

#include <cstdint>
#include <string>

#include "cc/xla/builder.h"
#include "cc/xla/row_update.h"

// Lookup and update of rows that are sharded over replicas, inside of one
// program that all replicas run. All tables of one width and update rule are
// stacked: id i is row i / replicas on replica i % replicas. Ids outside of [0,
// replicas * rows) have no row.
//
// A replica sends each of its distinct ids once, to the owner of its row, in
// rounds of at most `buffer` ids per pair of replicas, until all are sent. A
// single replica sends nothing, and needs no rounds.
namespace tfembed {

struct ExchangeShape {
  int64_t replicas = 1;
  int64_t buffer = 1;
};

struct FoundRows {
  xla::XlaOp rows;    // [n, width]; zeros for ids of no row.
  xla::XlaOp rounds;  // Equal on all replicas.
};

FoundRows LookUp(const ExchangeShape& exchange, xla::XlaOp shard,
                 xla::XlaOp ids);

struct UpdatedRows {
  TrainedRows state;
  xla::XlaOp rounds;
};

// Sums gradients [n, width] by id over all replicas and applies the rule once
// to each row, or without accumulation once for each occurrence.
UpdatedRows Update(const ExchangeShape& exchange, const RowTraining& training,
                   xla::XlaOp learning_rate, xla::XlaOp ids,
                   xla::XlaOp gradients, TrainedRows state);

// cpu_update.cc: the update of a single replica on a CPU as one call into
// cc/core's loops, which change the rows in place. XLA's own sorts and scatters
// go row by row there. For rules that do not move all rows. `rule_text` is that
// of training.rule.
UpdatedRows UpdateOnCpu(const RowTraining& training,
                        const std::string& rule_text, xla::XlaOp learning_rate,
                        xla::XlaOp ids, xla::XlaOp gradients,
                        TrainedRows state);

}  // namespace tfembed

#endif  // TFEMBED_XLA_EXCHANGE_H_
