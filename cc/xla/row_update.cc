#include "cc/xla/row_update.h"

#include <cmath>
#include <type_traits>
#include <utility>
#include <variant>

#include "cc/core/optimizers/formula.h"
#include "cc/xla/rows.h"

namespace tfembed {
namespace {

// A tensor in a program, with the operators that the formulas of
// cc/core/optimizers are written in. Scalars and single columns broadcast.
class XlaVector {
 public:
  XlaVector() = default;
  explicit XlaVector(xla::XlaOp op) : op_(op) {}

  xla::XlaOp op() const { return op_; }
  xla::XlaOp Constant(float x) const {
    return xla::ConstantR0<float>(op_.builder(), x);
  }

  XlaVector& operator+=(const XlaVector& other) {
    op_ = xla::Add(op_, other.op_);
    return *this;
  }
  XlaVector& operator-=(const XlaVector& other) {
    op_ = xla::Sub(op_, other.op_);
    return *this;
  }

 private:
  xla::XlaOp op_;
};

#define TFEMBED_XLA_OPERATOR(sign, function)                               \
  inline XlaVector operator sign(const XlaVector& a, const XlaVector& b) { \
    return XlaVector(xla::function(a.op(), b.op()));                       \
  }                                                                        \
  inline XlaVector operator sign(float a, const XlaVector& b) {            \
    return XlaVector(xla::function(b.Constant(a), b.op()));                \
  }                                                                        \
  inline XlaVector operator sign(const XlaVector& a, float b) {            \
    return XlaVector(xla::function(a.op(), a.Constant(b)));                \
  }

TFEMBED_XLA_OPERATOR(+, Add)
TFEMBED_XLA_OPERATOR(-, Sub)
TFEMBED_XLA_OPERATOR(*, Mul)
TFEMBED_XLA_OPERATOR(/, Div)

#undef TFEMBED_XLA_OPERATOR

inline XlaVector operator-(const XlaVector& v) {
  return XlaVector(xla::Neg(v.op()));
}

inline XlaVector Sqrt(const XlaVector& v) {
  return XlaVector(xla::Sqrt(v.op()));
}

inline XlaVector Power(const XlaVector& v, float exponent) {
  return XlaVector(xla::Pow(v.op(), v.Constant(exponent)));
}

// A NaN stays one.
inline XlaVector Clamp(const XlaVector& v, const XlaVector& low,
                       const XlaVector& high) {
  return XlaVector(xla::Clamp(low.op(), v.op(), high.op()));
}

inline XlaVector Clamp(const XlaVector& v, float low, float high) {
  if (std::isinf(low) && std::isinf(high)) return v;
  return XlaVector(xla::Clamp(v.Constant(low), v.op(), v.Constant(high)));
}

// 1, -1 or 0; a NaN stays one.
inline XlaVector Sign(const XlaVector& v) {
  return XlaVector(xla::Sign(v.op()));
}

// Moves v towards 0 by at most `by`, which is not negative.
inline XlaVector Shrink(const XlaVector& v, const XlaVector& by) {
  return v - XlaVector(xla::Min(xla::Max(v.op(), xla::Neg(by.op())), by.op()));
}

// Returns, for each row of gradients [n, width], whether it is finite.
xla::XlaOp RowIsFinite(xla::XlaOp gradients) {
  xla::XlaBuilder* builder = gradients.builder();
  return xla::Reduce(xla::IsFinite(gradients),
                     xla::ConstantR0<bool>(builder, true),
                     xla::CreateScalarAndComputation(xla::PRED, builder), {1});
}

XlaVector MeanSquare(const CommonParameters& common, xla::XlaOp gradients) {
  xla::XlaBuilder* builder = gradients.builder();
  const int64_t n = DimensionSize(gradients, 0);
  const int64_t width = DimensionSize(gradients, 1);
  const XlaVector clipped = ClipGradient(common, XlaVector(gradients));
  const xla::XlaOp sum =
      xla::Reduce((clipped * clipped).op(), xla::ConstantR0<float>(builder, 0),
                  xla::CreateScalarAddComputation(xla::F32, builder), {1});
  return XlaVector(xla::Reshape(sum, {n, 1})) / static_cast<float>(width);
}

// Applies the formula to rows [n, width] and their slots.
void Step(const UpdateRule& rule, xla::XlaOp learning_rate,
          xla::XlaOp gradients, xla::XlaOp* values,
          std::vector<xla::XlaOp>* slots) {
  const CommonParameters& common = rule.common();
  const XlaVector rate(learning_rate);
  const XlaVector gradient(gradients);
  XlaVector weights(*values);
  std::vector<XlaVector> state(slots->begin(), slots->end());
  std::visit(
      [&](const auto& formula) {
        using Formula = std::decay_t<decltype(formula)>;
        if constexpr (std::is_same_v<Formula, RowWiseAdagrad>) {
          const XlaVector own_rate =
              RowRate(formula, rate, MeanSquare(common, gradients), &state[0]);
          WholeStep(formula, common, rate, own_rate, gradient, &weights,
                    state.data());
        } else {
          WholeStep(formula, common, rate, rate, gradient, &weights,
                    state.data());
        }
      },
      rule.formula());
  *values = weights.op();
  for (size_t s = 0; s < slots->size(); ++s) (*slots)[s] = state[s].op();
}

// Adds the number of `rows` [n] in each table with a true `counts` [n] to
// state->nonfinite.
void CountNonfinite(const RowTraining& training, xla::XlaOp counts,
                    xla::XlaOp rows, TrainedRows* state) {
  xla::XlaBuilder* builder = rows.builder();
  const int64_t n = DimensionSize(rows, 0);
  std::vector<int32_t> ends;
  int32_t end = 0;
  for (int64_t table : training.table_rows) ends.push_back(end += table);
  const int64_t tables = ends.size();
  std::vector<int32_t> begins(1, 0);
  begins.insert(begins.end(), ends.begin(), ends.end() - 1);
  const auto spread = [&](const std::vector<int32_t>& bounds) {
    return xla::BroadcastInDim(xla::ConstantR1<int32_t>(builder, bounds),
                               {tables, n}, {0});
  };
  const xla::XlaOp each = xla::BroadcastInDim(rows, {tables, n}, {1});
  const xla::XlaOp is_counted = xla::And(
      xla::BroadcastInDim(counts, {tables, n}, {1}),
      xla::And(xla::Ge(each, spread(begins)), xla::Lt(each, spread(ends))));
  state->nonfinite = xla::Add(
      state->nonfinite,
      xla::Reduce(xla::ConvertElementType(is_counted, xla::S32),
                  ConstantInt(builder, 0),
                  xla::CreateScalarAddComputation(xla::S32, builder), {1}));
}

xla::XlaOp NoneUnless(xla::XlaOp mask, xla::XlaOp indices) {
  const int64_t n = DimensionSize(indices, 0);
  return xla::Select(
      mask, indices,
      xla::Broadcast(ConstantInt(indices.builder(), kNone), {n}));
}

}  // namespace

std::vector<xla::XlaOp> TrainedRows::Flat() const {
  std::vector<xla::XlaOp> flat = {values, nonfinite};
  flat.insert(flat.end(), slots.begin(), slots.end());
  return flat;
}

TrainedRows TrainedRows::FromFlat(absl::Span<const xla::XlaOp> flat) {
  TrainedRows state;
  state.values = flat[0];
  state.nonfinite = flat[1];
  state.slots.assign(flat.begin() + 2, flat.end());
  return state;
}

TrainedRows UpdateRows(const RowTraining& training, xla::XlaOp learning_rate,
                       xla::XlaOp rows, xla::XlaOp gradients,
                       TrainedRows state) {
  const xla::XlaOp is_finite = RowIsFinite(gradients);
  CountNonfinite(training, xla::Not(is_finite), rows, &state);
  xla::XlaOp values = GatherRows(state.values, rows);
  std::vector<xla::XlaOp> slots;
  for (xla::XlaOp slot : state.slots) slots.push_back(GatherRows(slot, rows));
  Step(*training.rule, learning_rate, gradients, &values, &slots);
  if (training.skip_nonfinite) rows = NoneUnless(is_finite, rows);
  state.values = ReplaceRows(state.values, rows, values);
  for (size_t s = 0; s < slots.size(); ++s) {
    state.slots[s] = ReplaceRows(state.slots[s], rows, slots[s]);
  }
  return state;
}

TrainedRows UpdateOccurrences(const RowTraining& training,
                              xla::XlaOp learning_rate, xla::XlaOp rows,
                              xla::XlaOp gradients, TrainedRows state) {
  xla::XlaBuilder* builder = rows.builder();
  const int64_t n = DimensionSize(rows, 0);
  // The number of an entry among those of its row; -1 where it has no row.
  const xla::XlaOp place = xla::Iota(builder, xla::S32, n);
  const xla::XlaOp first = PrefixMaxima(
      xla::Select(IsFirst(rows), place, Zeros(builder, xla::S32, {n})));
  const xla::XlaOp none = xla::Broadcast(ConstantInt(builder, kNone), {n});
  const xla::XlaOp occurrence = xla::Select(
      xla::Eq(rows, none), xla::Broadcast(ConstantInt(builder, -1), {n}),
      xla::Sub(place, first));
  std::vector<xla::XlaOp> initial = {ConstantInt(builder, 0),
                                     Maximum(occurrence),
                                     occurrence,
                                     rows,
                                     gradients,
                                     learning_rate};
  const size_t kept = initial.size();
  for (xla::XlaOp part : state.Flat()) initial.push_back(part);
  const auto condition = [](absl::Span<const xla::XlaOp> v,
                            xla::XlaBuilder*) -> absl::StatusOr<xla::XlaOp> {
    return xla::Le(v[0], v[1]);
  };
  const auto body =
      [&](absl::Span<const xla::XlaOp> v,
          xla::XlaBuilder* inner) -> absl::StatusOr<std::vector<xla::XlaOp>> {
    const xla::XlaOp now = xla::Eq(v[2], xla::Broadcast(v[0], {n}));
    const TrainedRows next =
        UpdateRows(training, v[5], NoneUnless(now, v[3]), v[4],
                   TrainedRows::FromFlat(v.subspan(kept)));
    std::vector<xla::XlaOp> result(v.begin(), v.begin() + kept);
    result[0] = xla::Add(v[0], ConstantInt(inner, 1));
    for (xla::XlaOp part : next.Flat()) result.push_back(part);
    return result;
  };
  const absl::StatusOr<std::vector<xla::XlaOp>> done =
      xla::WhileLoopHelper(condition, body, initial, "occurrences", builder);
  if (!done.ok()) {
    builder->ReportError(done.status());
    return state;
  }
  return TrainedRows::FromFlat(absl::MakeSpan(*done).subspan(kept));
}

TrainedRows UpdateAllRows(const RowTraining& training, xla::XlaOp learning_rate,
                          xla::XlaOp gradients, TrainedRows state) {
  xla::XlaBuilder* builder = gradients.builder();
  const int64_t n = DimensionSize(gradients, 0);
  const xla::XlaOp is_finite = RowIsFinite(gradients);
  CountNonfinite(training, xla::Not(is_finite), xla::Iota(builder, xla::S32, n),
                 &state);
  xla::XlaOp values = state.values;
  std::vector<xla::XlaOp> slots = state.slots;
  Step(*training.rule, learning_rate, gradients, &values, &slots);
  const auto keep_old = [&](xla::XlaOp updated, xla::XlaOp old) {
    if (!training.skip_nonfinite) return updated;
    const int64_t width = DimensionSize(old, 1);
    return xla::Select(xla::BroadcastInDim(is_finite, {n, width}, {0}), updated,
                       old);
  };
  state.values = keep_old(values, state.values);
  for (size_t s = 0; s < slots.size(); ++s) {
    state.slots[s] = keep_old(slots[s], state.slots[s]);
  }
  return state;
}

}  // namespace tfembed
