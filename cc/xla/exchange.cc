#include "cc/xla/exchange.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cc/xla/builder.h"
#include "cc/xla/rows.h"

namespace tfembed {
namespace {

// Returns the elementwise minimum, or maximum, of x over all replicas; int32.
xla::XlaOp MinimumOfReplicas(xla::XlaOp x, int64_t replicas);
xla::XlaOp MaximumOfReplicas(xla::XlaOp x, int64_t replicas);

// Sends part r of x [replicas, ...] to replica r; part r of the result came
// from replica r.
xla::XlaOp Exchanged(xla::XlaOp x, int64_t replicas);

std::vector<xla::ReplicaGroup> Everyone(int64_t replicas) {
  std::vector<xla::ReplicaGroup> groups(1);
  for (int64_t r = 0; r < replicas; ++r) groups[0].add_replica_ids(r);
  return groups;
}

xla::XlaOp MinimumOfReplicas(xla::XlaOp x, int64_t replicas) {
  return xla::AllReduce(x,
                        xla::CreateScalarMinComputation(xla::S32, x.builder()),
                        Everyone(replicas));
}

xla::XlaOp MaximumOfReplicas(xla::XlaOp x, int64_t replicas) {
  return xla::AllReduce(x,
                        xla::CreateScalarMaxComputation(xla::S32, x.builder()),
                        Everyone(replicas));
}

xla::XlaOp Exchanged(xla::XlaOp x, int64_t replicas) {
  return xla::AllToAll(x, /*split_dimension=*/0, /*concat_dimension=*/0,
                       replicas, Everyone(replicas));
}

// Ids [n] of a program in the order of their keys. A key is owner * shard_rows
// + row, of an id the owner is id % replicas and the row id / replicas; ids of
// no row have kNone. All int32 [n].
struct SortedIds {
  xla::XlaOp keys;      // Ascending, kNone last.
  xla::XlaOp order;     // keys[i] is that of ids[order[i]].
  xla::XlaOp distinct;  // Each key once, ascending, then kNone.
  xla::XlaOp places;    // ids[i]'s in `distinct`; kNone for ids of no row.
};

// Returns the keys of `ids`, in the order of `ids`.
xla::XlaOp KeysOf(xla::XlaOp ids, int64_t replicas, int64_t shard_rows);

SortedIds SortKeys(xla::XlaOp keys);

// Both by the first; where that is equal and `by_both`, by the second. Stable
// sorts carry places along, which takes the TPU's compiler twice as long.
void SortPairs(xla::XlaOp* first, xla::XlaOp* second, bool by_both) {
  xla::XlaBuilder* builder = first->builder();
  using Compare =
      xla::XlaOp (*)(xla::XlaOp, xla::XlaOp, absl::Span<const int64_t>);
  std::vector<std::optional<Compare>> compare = {xla::LtTotalOrder};
  compare.push_back(by_both ? compare[0] : std::nullopt);
  const xla::XlaOp sorted =
      xla::Sort({*first, *second},
                xla::CreateScalarComparisonComputation(
                    "less", {xla::S32, xla::S32}, compare, builder),
                /*dimension=*/0);
  *first = xla::GetTupleElement(sorted, 0);
  *second = xla::GetTupleElement(sorted, 1);
}

xla::XlaOp KeysOf(xla::XlaOp ids, int64_t replicas, int64_t shard_rows) {
  xla::XlaBuilder* builder = ids.builder();
  const int64_t n = DimensionSize(ids, 0);
  const xla::XlaOp count = ConstantInt(builder, replicas);
  const xla::XlaOp key =
      xla::Add(xla::Mul(xla::Rem(ids, count), ConstantInt(builder, shard_rows)),
               xla::Div(ids, count));
  const xla::XlaOp has_row =
      xla::And(xla::Ge(ids, ConstantInt(builder, 0)),
               xla::Lt(ids, ConstantInt(builder, replicas * shard_rows)));
  return xla::Select(has_row, key,
                     xla::Broadcast(ConstantInt(builder, kNone), {n}));
}

SortedIds SortKeys(xla::XlaOp keys) {
  xla::XlaBuilder* builder = keys.builder();
  const int64_t n = DimensionSize(keys, 0);
  const xla::XlaOp none = xla::Broadcast(ConstantInt(builder, kNone), {n});
  SortedIds sorted;
  sorted.keys = keys;
  sorted.order = xla::Iota(builder, xla::S32, n);
  SortPairs(&sorted.keys, &sorted.order, /*by_both=*/true);
  const xla::XlaOp is_first = IsFirst(sorted.keys);
  const xla::XlaOp has_row = xla::Ne(sorted.keys, none);
  sorted.distinct = xla::Sort(
      {xla::Select(is_first, sorted.keys, none)},
      xla::CreateScalarLtComputation({xla::S32}, builder), /*dimension=*/0);
  const xla::XlaOp place =
      xla::Sub(PrefixSums(xla::ConvertElementType(is_first, xla::S32)),
               ConstantInt(builder, 1));
  // Back into the order of the ids, which are all different.
  xla::XlaOp order = sorted.order;
  sorted.places = xla::Select(has_row, place, none);
  SortPairs(&order, &sorted.places, /*by_both=*/false);
  return sorted;
}

// The part of ascending keys that goes to each owner.
struct SendPlan {
  xla::XlaOp begins;  // [replicas]
  xla::XlaOp ends;    // [replicas]
  xla::XlaOp rounds;  // As this replica needs; at least 1.
};

SendPlan PlanSending(const ExchangeShape& exchange, xla::XlaOp keys,
                     int64_t shard_rows);

// Returns for each owner [replicas, buffer] the places of its entries [from,
// to) in `keys`, at most `buffer` of them.
xla::XlaOp PlacesToSend(const ExchangeShape& exchange, xla::XlaOp from);

// The same as row numbers on the owners; kNone fills up.
xla::XlaOp RowsToSend(const ExchangeShape& exchange, xla::XlaOp keys,
                      xla::XlaOp from, xla::XlaOp to, int64_t shard_rows);

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

// The values of the loop over a lookup's rounds, in this order.
struct LookupValue {
  enum {
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
};

// Sends the same numbers as integers. Otherwise, if all readers of rows round
// them to bfloat16, the TPU's compiler rounds the whole shard in each step.
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

std::vector<xla::XlaOp> LookUpRound(const ExchangeShape& exchange,
                                    absl::Span<const xla::XlaOp> v) {
  const int64_t replicas = exchange.replicas;
  const int64_t buffer = exchange.buffer;
  xla::XlaBuilder* builder = v[LookupValue::kRound].builder();
  const int64_t n = DimensionSize(v[LookupValue::kPlaces], 0);
  const int64_t width = DimensionSize(v[LookupValue::kShard], 1);
  const xla::XlaOp sent =
      xla::Mul(v[LookupValue::kRound], ConstantInt(builder, buffer));
  const xla::XlaOp asked = Exchanged(
      RowsToSend(exchange, v[LookupValue::kDistinct],
                 xla::Add(v[LookupValue::kBegins], sent), v[LookupValue::kEnds],
                 DimensionSize(v[LookupValue::kShard], 0)),
      replicas);
  const xla::XlaOp answers = AsFloat32(GatherRows(
      v[LookupValue::kShard], xla::Reshape(asked, {replicas * buffer})));
  const xla::XlaOp received = xla::Reshape(
      Exchanged(xla::Reshape(answers, {replicas, buffer, width}), replicas),
      {replicas * buffer, width});
  // An id's row is at its place among those that its owner was asked for.
  const xla::XlaOp place = xla::Sub(v[LookupValue::kPlaces], sent);
  const xla::XlaOp is_here =
      xla::And(xla::Ge(place, ConstantInt(builder, 0)),
               xla::Lt(place, ConstantInt(builder, buffer)));
  const xla::XlaOp at = xla::Add(
      xla::Mul(v[LookupValue::kOwners], ConstantInt(builder, buffer)), place);
  std::vector<xla::XlaOp> next(v.begin(), v.end());
  next[LookupValue::kRound] =
      xla::Add(v[LookupValue::kRound], ConstantInt(builder, 1));
  next[LookupValue::kFound] =
      xla::Select(xla::BroadcastInDim(is_here, {n, width}, {0}),
                  GatherRows(received, at), v[LookupValue::kFound]);
  return next;
}

// Ascending keys and their gradients, on their way to the owners.
struct Entries {
  xla::XlaOp keys;
  xla::XlaOp gradients;
};

// The values of the loop over an update's rounds, in this order; then the
// trained rows.
enum Value {
  kRound,
  kMore,
  kFrom,
  kEnds,
  kKeys,
  kGradients,
  kLearningRate,
  kAllRows,
  kNumValues
};

// Rules that apply a gradient to a row once need all of it in one round.
bool NeedsWholeSums(const UpdateRule& rule) {
  return rule.accumulate() && !rule.moves_all_rows();
}

Entries SumByKey(const SortedIds& sorted, xla::XlaOp gradients) {
  const int64_t n = DimensionSize(gradients, 0);
  const int64_t width = DimensionSize(gradients, 1);
  return {sorted.distinct,
          AddRows(Zeros(gradients.builder(), xla::F32, {n, width}),
                  sorted.places, gradients)};
}

Entries SortOccurrences(const SortedIds& sorted, xla::XlaOp gradients) {
  return {sorted.keys, GatherRows(gradients, sorted.order)};
}

// The gradients that an owner has received in one round, or its own gradients.
TrainedRows Apply(const RowTraining& training, xla::XlaOp learning_rate,
                  const Entries& entries, TrainedRows state) {
  return training.rule->accumulate()
             ? UpdateRows(training, learning_rate, entries.keys,
                          entries.gradients, std::move(state))
             : UpdateOccurrences(training, learning_rate, entries.keys,
                                 entries.gradients, std::move(state));
}

// Gradients of zero for all rows.
xla::XlaOp NoGradients(xla::XlaOp values) {
  return Zeros(values.builder(), xla::F32,
               {DimensionSize(values, 0), DimensionSize(values, 1)});
}

UpdatedRows UpdateOwn(const RowTraining& training, xla::XlaOp learning_rate,
                      const Entries& entries, TrainedRows state) {
  const xla::XlaOp one = ConstantInt(learning_rate.builder(), 1);
  if (!training.rule->moves_all_rows()) {
    return {Apply(training, learning_rate, entries, std::move(state)), one};
  }
  const xla::XlaOp gradients =
      AddRows(NoGradients(state.values), entries.keys, entries.gradients);
  return {UpdateAllRows(training, learning_rate, gradients, std::move(state)),
          one};
}

// Returns the end of each owner's entries in this round, and whether more
// rounds follow. If the rule requires it, a row's entries on all replicas are
// sent in the same round: those below the first key that does not fit into some
// replica's buffer.
std::pair<xla::XlaOp, xla::XlaOp> EndOfRound(const ExchangeShape& exchange,
                                             bool needs_whole_sums,
                                             absl::Span<const xla::XlaOp> v) {
  xla::XlaBuilder* builder = v[kRound].builder();
  const xla::XlaOp full =
      xla::Add(v[kFrom], ConstantInt(builder, exchange.buffer));
  const xla::XlaOp has_more = xla::Lt(full, v[kEnds]);
  if (!needs_whole_sums) {
    const xla::XlaOp more =
        MaximumOfReplicas(Maximum(xla::ConvertElementType(has_more, xla::S32)),
                          exchange.replicas);
    return {xla::Min(full, v[kEnds]), more};
  }
  const xla::XlaOp none =
      xla::Broadcast(ConstantInt(builder, kNone), {exchange.replicas});
  const xla::XlaOp bound =
      MinimumOfReplicas(xla::Select(has_more, GatherRows(v[kKeys], full), none),
                        exchange.replicas);
  const xla::XlaOp is_bound = xla::Ne(bound, none);
  return {xla::Select(is_bound, LowerBound(v[kKeys], bound), v[kEnds]),
          Maximum(xla::ConvertElementType(is_bound, xla::S32))};
}

// Sends the entries [from, to) of each owner; returns the received ones, by
// row.
Entries Send(const ExchangeShape& exchange, absl::Span<const xla::XlaOp> v,
             xla::XlaOp to, int64_t shard_rows) {
  const int64_t replicas = exchange.replicas;
  const int64_t places = replicas * exchange.buffer;
  const int64_t width = DimensionSize(v[kGradients], 1);
  const xla::XlaOp rows = Exchanged(
      RowsToSend(exchange, v[kKeys], v[kFrom], to, shard_rows), replicas);
  const xla::XlaOp at =
      xla::Reshape(PlacesToSend(exchange, v[kFrom]), {places});
  const xla::XlaOp gradients =
      Exchanged(xla::Reshape(GatherRows(v[kGradients], at),
                             {replicas, exchange.buffer, width}),
                replicas);
  return {xla::Reshape(rows, {places}),
          xla::Reshape(gradients, {places, width})};
}

std::vector<xla::XlaOp> Round(const ExchangeShape& exchange,
                              const RowTraining& training,
                              absl::Span<const xla::XlaOp> v) {
  xla::XlaBuilder* builder = v[kRound].builder();
  const UpdateRule& rule = *training.rule;
  const auto [to, more] = EndOfRound(exchange, NeedsWholeSums(rule), v);
  TrainedRows state = TrainedRows::FromFlat(v.subspan(kNumValues));
  std::vector<xla::XlaOp> next(v.begin(), v.begin() + kNumValues);
  const Entries received =
      Send(exchange, v, to, DimensionSize(state.values, 0));
  if (rule.moves_all_rows()) {
    next[kAllRows] = AddRows(v[kAllRows], received.keys, received.gradients);
  } else {
    const SortedIds sorted = SortKeys(received.keys);
    state =
        Apply(training, v[kLearningRate],
              rule.accumulate() ? SumByKey(sorted, received.gradients)
                                : SortOccurrences(sorted, received.gradients),
              std::move(state));
  }
  next[kRound] = xla::Add(v[kRound], ConstantInt(builder, 1));
  next[kMore] = more;
  next[kFrom] = to;
  for (xla::XlaOp part : state.Flat()) next.push_back(part);
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

  std::vector<xla::XlaOp> values(LookupValue::kNumValues);
  values[LookupValue::kRound] = ConstantInt(builder, 0);
  values[LookupValue::kRounds] =
      MaximumOfReplicas(plan.rounds, exchange.replicas);
  // A place beyond all rounds, for ids of no row.
  values[LookupValue::kPlaces] =
      xla::Select(xla::Eq(sorted.places, none), none,
                  xla::Sub(sorted.places, GatherRows(plan.begins, owners)));
  values[LookupValue::kOwners] = owners;
  values[LookupValue::kDistinct] = sorted.distinct;
  values[LookupValue::kBegins] = plan.begins;
  values[LookupValue::kEnds] = plan.ends;
  values[LookupValue::kShard] = shard;
  values[LookupValue::kFound] =
      Zeros(builder, xla::F32, {n, DimensionSize(shard, 1)});
  const auto condition = [](absl::Span<const xla::XlaOp> v,
                            xla::XlaBuilder*) -> absl::StatusOr<xla::XlaOp> {
    return xla::Lt(v[LookupValue::kRound], v[LookupValue::kRounds]);
  };
  const auto body =
      [&exchange](absl::Span<const xla::XlaOp> v,
                  xla::XlaBuilder*) -> absl::StatusOr<std::vector<xla::XlaOp>> {
    return LookUpRound(exchange, v);
  };
  const absl::StatusOr<std::vector<xla::XlaOp>> done =
      xla::WhileLoopHelper(condition, body, values, "lookup_rounds", builder);
  if (!done.ok()) return {builder->ReportError(done.status()), xla::XlaOp()};
  return {(*done)[LookupValue::kFound], (*done)[LookupValue::kRounds]};
}

UpdatedRows Update(const ExchangeShape& exchange, const RowTraining& training,
                   xla::XlaOp learning_rate, xla::XlaOp ids,
                   xla::XlaOp gradients, TrainedRows state) {
  xla::XlaBuilder* builder = ids.builder();
  const UpdateRule& rule = *training.rule;
  const int64_t shard_rows = DimensionSize(state.values, 0);
  const SortedIds sorted = SortKeys(KeysOf(ids, exchange.replicas, shard_rows));
  const Entries entries = rule.accumulate()
                              ? SumByKey(sorted, gradients)
                              : SortOccurrences(sorted, gradients);
  if (exchange.replicas == 1) {
    return UpdateOwn(training, learning_rate, entries, std::move(state));
  }
  const SendPlan plan = PlanSending(exchange, entries.keys, shard_rows);
  std::vector<xla::XlaOp> values(kNumValues);
  values[kRound] = ConstantInt(builder, 0);
  values[kMore] = ConstantInt(builder, 1);
  values[kFrom] = plan.begins;
  values[kEnds] = plan.ends;
  values[kKeys] = entries.keys;
  values[kGradients] = entries.gradients;
  values[kLearningRate] = learning_rate;
  values[kAllRows] = rule.moves_all_rows() ? NoGradients(state.values)
                                           : xla::ConstantR0<float>(builder, 0);
  for (xla::XlaOp part : state.Flat()) values.push_back(part);
  const auto condition =
      [](absl::Span<const xla::XlaOp> v,
         xla::XlaBuilder* inner) -> absl::StatusOr<xla::XlaOp> {
    return xla::Ne(v[kMore], ConstantInt(inner, 0));
  };
  const auto body =
      [&](absl::Span<const xla::XlaOp> v,
          xla::XlaBuilder*) -> absl::StatusOr<std::vector<xla::XlaOp>> {
    return Round(exchange, training, v);
  };
  const absl::StatusOr<std::vector<xla::XlaOp>> done =
      xla::WhileLoopHelper(condition, body, values, "update_rounds", builder);
  if (!done.ok()) {
    return {std::move(state), builder->ReportError(done.status())};
  }
  state = TrainedRows::FromFlat(absl::MakeSpan(*done).subspan(kNumValues));
  if (rule.moves_all_rows()) {
    state = UpdateAllRows(training, learning_rate, (*done)[kAllRows],
                          std::move(state));
  }
  return {std::move(state), (*done)[kRound]};
}

}  // namespace tfembed
