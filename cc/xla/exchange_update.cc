#include <utility>
#include <vector>

#include "cc/xla/collectives.h"
#include "cc/xla/exchange.h"
#include "cc/xla/rows.h"
#include "cc/xla/send_plan.h"
#include "cc/xla/sorted_ids.h"

namespace tfembed {
namespace {

// Ascending keys and their gradients, on their way to the owners.
struct Entries {
  xla::XlaOp keys;
  xla::XlaOp gradients;
};

// What a round knows: the loop's values, in this order; then the trained rows.
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

// The gradients that an owner has received in one round, or has of its own.
TrainedRows Apply(const RowTraining& training, xla::XlaOp learning_rate,
                  const Entries& entries, TrainedRows state) {
  return training.rule->accumulate()
             ? UpdateRows(training, learning_rate, entries.keys,
                          entries.gradients, std::move(state))
             : UpdateOccurrences(training, learning_rate, entries.keys,
                                 entries.gradients, std::move(state));
}

// Of all rows.
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

// Up to where each owner's entries go in this round, and whether it is not the
// last. A row's entries on all replicas go in the same round where the rule
// needs that: those below the first key that some replica's buffer has no place
// for.
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

// Sends the entries [from, to) of each owner; gives those that came, by row.
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
