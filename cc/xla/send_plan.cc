#include "cc/xla/send_plan.h"

#include "cc/xla/rows.h"

namespace tfembed {

SendPlan PlanSending(const ExchangeShape& exchange, xla::XlaOp keys,
                     int64_t shard_rows) {
  xla::XlaBuilder* builder = keys.builder();
  const int64_t replicas = exchange.replicas;
  const xla::XlaOp lowest = xla::Mul(xla::Iota(builder, xla::S32, replicas),
                                     ConstantInt(builder, shard_rows));
  SendPlan plan;
  plan.begins = LowerBound(keys, lowest);
  plan.ends =
      LowerBound(keys, xla::Add(lowest, ConstantInt(builder, shard_rows)));
  const xla::XlaOp buffer = ConstantInt(builder, exchange.buffer);
  const xla::XlaOp most = Maximum(xla::Sub(plan.ends, plan.begins));
  plan.rounds = xla::Max(
      xla::Div(xla::Add(most, xla::Sub(buffer, ConstantInt(builder, 1))),
               buffer),
      ConstantInt(builder, 1));
  return plan;
}

xla::XlaOp PlacesToSend(const ExchangeShape& exchange, xla::XlaOp from) {
  const std::vector<int64_t> shape = {exchange.replicas, exchange.buffer};
  return xla::Add(
      xla::BroadcastInDim(from, shape, {0}),
      xla::Iota(from.builder(), xla::ShapeUtil::MakeShape(xla::S32, shape), 1));
}

xla::XlaOp RowsToSend(const ExchangeShape& exchange, xla::XlaOp keys,
                      xla::XlaOp from, xla::XlaOp to, int64_t shard_rows) {
  xla::XlaBuilder* builder = keys.builder();
  const int64_t replicas = exchange.replicas;
  const int64_t buffer = exchange.buffer;
  const std::vector<int64_t> shape = {replicas, buffer};
  const xla::XlaOp places = PlacesToSend(exchange, from);
  const xla::XlaOp lowest = xla::Mul(xla::Iota(builder, xla::S32, replicas),
                                     ConstantInt(builder, shard_rows));
  const xla::XlaOp found = xla::Reshape(
      GatherRows(keys, xla::Reshape(places, {replicas * buffer})), shape);
  return xla::Select(xla::Lt(places, xla::BroadcastInDim(to, shape, {0})),
                     xla::Sub(found, xla::BroadcastInDim(lowest, shape, {0})),
                     xla::Broadcast(ConstantInt(builder, kNone), shape));
}

}  // namespace tfembed
