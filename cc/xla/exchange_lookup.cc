#include <vector>

#include "cc/xla/collectives.h"
#include "cc/xla/exchange.h"
#include "cc/xla/rows.h"
#include "cc/xla/send_plan.h"
#include "cc/xla/sorted_ids.h"

namespace tfembed {
namespace {

// What a round knows: the loop's values, in this order.
enum Value {
  kRound,
  kRounds,
  kPlaces,
  kOwners,
  kDistinct,
  kBegins,
  kEnds,
  kShard,
  kFound,
  kNumValues
};

// The same numbers, as integers on their way. Where all that reads rows rounds
// them to bfloat16, the TPU's compiler else rounds the whole shard in each
// step.
xla::XlaOp AsFloat32(xla::XlaOp rows) {
  return xla::BitcastConvertType(
      xla::OptimizationBarrier(xla::BitcastConvertType(rows, xla::S32)),
      xla::F32);
}

FoundRows LookUpOwn(xla::XlaOp shard, xla::XlaOp ids) {
  const int64_t n = DimensionSize(ids, 0);
  const xla::XlaOp keys = KeysOf(ids, 1, DimensionSize(shard, 0));
  const xla::XlaOp none =
      xla::Broadcast(ConstantInt(ids.builder(), kNone), {n});
  return {ZeroUnless(xla::Ne(keys, none), GatherRows(shard, keys)),
          ConstantInt(ids.builder(), 1)};
}

std::vector<xla::XlaOp> Round(const ExchangeShape& exchange,
                              absl::Span<const xla::XlaOp> v) {
  const int64_t replicas = exchange.replicas;
  const int64_t buffer = exchange.buffer;
  xla::XlaBuilder* builder = v[kRound].builder();
  const int64_t n = DimensionSize(v[kPlaces], 0);
  const int64_t width = DimensionSize(v[kShard], 1);
  const xla::XlaOp sent = xla::Mul(v[kRound], ConstantInt(builder, buffer));
  const xla::XlaOp asked =
      Exchanged(RowsToSend(exchange, v[kDistinct], xla::Add(v[kBegins], sent),
                           v[kEnds], DimensionSize(v[kShard], 0)),
                replicas);
  const xla::XlaOp answers = AsFloat32(
      GatherRows(v[kShard], xla::Reshape(asked, {replicas * buffer})));
  const xla::XlaOp received = xla::Reshape(
      Exchanged(xla::Reshape(answers, {replicas, buffer, width}), replicas),
      {replicas * buffer, width});
  // An id's row is at its place among those that its owner was asked for.
  const xla::XlaOp place = xla::Sub(v[kPlaces], sent);
  const xla::XlaOp is_here =
      xla::And(xla::Ge(place, ConstantInt(builder, 0)),
               xla::Lt(place, ConstantInt(builder, buffer)));
  const xla::XlaOp at =
      xla::Add(xla::Mul(v[kOwners], ConstantInt(builder, buffer)), place);
  std::vector<xla::XlaOp> next(v.begin(), v.end());
  next[kRound] = xla::Add(v[kRound], ConstantInt(builder, 1));
  next[kFound] = xla::Select(xla::BroadcastInDim(is_here, {n, width}, {0}),
                             GatherRows(received, at), v[kFound]);
  return next;
}

}  // namespace

FoundRows LookUp(const ExchangeShape& exchange, xla::XlaOp shard,
                 xla::XlaOp ids) {
  if (exchange.replicas == 1) return LookUpOwn(shard, ids);
  xla::XlaBuilder* builder = ids.builder();
  const int64_t n = DimensionSize(ids, 0);
  const int64_t shard_rows = DimensionSize(shard, 0);
  const SortedIds sorted = SortKeys(KeysOf(ids, exchange.replicas, shard_rows));
  const SendPlan plan = PlanSending(exchange, sorted.distinct, shard_rows);
  const xla::XlaOp owners = xla::Rem(xla::Max(ids, ConstantInt(builder, 0)),
                                     ConstantInt(builder, exchange.replicas));
  const xla::XlaOp none = xla::Broadcast(ConstantInt(builder, kNone), {n});

  std::vector<xla::XlaOp> values(kNumValues);
  values[kRound] = ConstantInt(builder, 0);
  values[kRounds] = MaximumOfReplicas(plan.rounds, exchange.replicas);
  // A place beyond all rounds, for ids of no row.
  values[kPlaces] =
      xla::Select(xla::Eq(sorted.places, none), none,
                  xla::Sub(sorted.places, GatherRows(plan.begins, owners)));
  values[kOwners] = owners;
  values[kDistinct] = sorted.distinct;
  values[kBegins] = plan.begins;
  values[kEnds] = plan.ends;
  values[kShard] = shard;
  values[kFound] = Zeros(builder, xla::F32, {n, DimensionSize(shard, 1)});
  const auto condition = [](absl::Span<const xla::XlaOp> v,
                            xla::XlaBuilder*) -> absl::StatusOr<xla::XlaOp> {
    return xla::Lt(v[kRound], v[kRounds]);
  };
  const auto body =
      [&exchange](absl::Span<const xla::XlaOp> v,
                  xla::XlaBuilder*) -> absl::StatusOr<std::vector<xla::XlaOp>> {
    return Round(exchange, v);
  };
  const absl::StatusOr<std::vector<xla::XlaOp>> done =
      xla::WhileLoopHelper(condition, body, values, "lookup_rounds", builder);
  if (!done.ok()) return {builder->ReportError(done.status()), xla::XlaOp()};
  return {(*done)[kFound], (*done)[kRounds]};
}

}  // namespace tfembed
