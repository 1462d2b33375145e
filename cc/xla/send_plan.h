#ifndef TFEMBED_XLA_SEND_PLAN_H_
#define TFEMBED_XLA_SEND_PLAN_H_

#include "cc/xla/builder.h"
#include "cc/xla/exchange.h"

namespace tfembed {

// Which part of ascending keys goes to which owner.
struct SendPlan {
  xla::XlaOp begins;  // [replicas]
  xla::XlaOp ends;    // [replicas]
  xla::XlaOp rounds;  // That this replica needs alone; at least 1.
};

SendPlan PlanSending(const ExchangeShape& exchange, xla::XlaOp keys,
                     int64_t shard_rows);

// Of each owner [replicas, buffer] the entries [from, to) of `keys`, at most
// `buffer` of them, by their places.
xla::XlaOp PlacesToSend(const ExchangeShape& exchange, xla::XlaOp from);

// The same as row numbers on the owners; kNone fills up.
xla::XlaOp RowsToSend(const ExchangeShape& exchange, xla::XlaOp keys,
                      xla::XlaOp from, xla::XlaOp to, int64_t shard_rows);

}  // namespace tfembed

#endif  // TFEMBED_XLA_SEND_PLAN_H_
