#include "cc/xla/rows.h"

namespace tfembed {
namespace {

xla::XlaComputation Replace(xla::XlaBuilder* builder) {
  std::unique_ptr<xla::XlaBuilder> inner = builder->CreateSubBuilder("replace");
  const xla::Shape scalar = xla::ShapeUtil::MakeShape(xla::F32, {});
  xla::Parameter(inner.get(), 0, scalar, "old");
  xla::Parameter(inner.get(), 1, scalar, "new");
  return inner->BuildAndNoteError();
}

xla::XlaOp ScatterRows(xla::XlaOp into, xla::XlaOp indices, xla::XlaOp rows,
                       const xla::XlaComputation& combine, bool is_unique) {
  xla::ScatterDimensionNumbers numbers;
  numbers.add_update_window_dims(1);
  numbers.add_inserted_window_dims(0);
  numbers.add_scatter_dims_to_operand_dims(0);
  numbers.set_index_vector_dim(1);
  return xla::Scatter(into, indices, rows, combine, numbers,
                      /*indices_are_sorted=*/false, is_unique);
}

// Combines each entry with all before it, in log2(n) steps.
template <class Combine>
xla::XlaOp Scan(xla::XlaOp x, Combine combine) {
  const int64_t n = DimensionSize(x, 0);
  const xla::XlaOp zero = ConstantInt(x.builder(), 0);
  for (int64_t step = 1; step < n; step *= 2) {
    xla::PaddingConfig shift;
    xla::PaddingConfig::PaddingConfigDimension* by = shift.add_dimensions();
    by->set_edge_padding_low(step);
    by->set_edge_padding_high(-step);
    x = combine(x, xla::Pad(x, zero, shift));
  }
  return x;
}

}  // namespace

xla::XlaOp ConstantInt(xla::XlaBuilder* builder, int32_t x) {
  return xla::ConstantR0<int32_t>(builder, x);
}

int64_t DimensionSize(xla::XlaOp op, int64_t dimension) {
  const absl::StatusOr<xla::Shape> shape = op.builder()->GetShape(op);
  // An operation before failed; the builder keeps its error.
  return shape.ok() ? shape->dimensions(dimension) : 1;
}

xla::XlaOp Zeros(xla::XlaBuilder* builder, xla::PrimitiveType type,
                 absl::Span<const int64_t> shape) {
  const xla::XlaOp zero = type == xla::F32 ? xla::ConstantR0<float>(builder, 0)
                          : type == xla::PRED
                              ? xla::ConstantR0<bool>(builder, false)
                              : ConstantInt(builder, 0);
  return xla::Broadcast(zero, shape);
}

xla::XlaOp GatherRows(xla::XlaOp from, xla::XlaOp indices) {
  const absl::StatusOr<xla::Shape> shape = from.builder()->GetShape(from);
  if (!shape.ok()) return from.builder()->ReportError(shape.status());
  xla::GatherDimensionNumbers numbers;
  numbers.add_collapsed_slice_dims(0);
  numbers.add_start_index_map(0);
  numbers.set_index_vector_dim(1);
  std::vector<int64_t> sizes = {1};
  if (shape->dimensions_size() == 2) {
    numbers.add_offset_dims(1);
    sizes.push_back(shape->dimensions(1));
  }
  return xla::Gather(from, indices, numbers, sizes);
}

xla::XlaOp AddRows(xla::XlaOp into, xla::XlaOp indices, xla::XlaOp rows) {
  return ScatterRows(into, indices, rows,
                     xla::CreateScalarAddComputation(xla::F32, into.builder()),
                     false);
}

xla::XlaOp ReplaceRows(xla::XlaOp into, xla::XlaOp indices, xla::XlaOp rows) {
  return ScatterRows(into, indices, rows, Replace(into.builder()), true);
}

xla::XlaOp ZeroUnless(xla::XlaOp mask, xla::XlaOp rows) {
  const int64_t n = DimensionSize(rows, 0);
  const int64_t width = DimensionSize(rows, 1);
  return xla::Select(xla::BroadcastInDim(mask, {n, width}, {0}), rows,
                     Zeros(rows.builder(), xla::F32, {n, width}));
}

xla::XlaOp LowerBound(xla::XlaOp sorted, xla::XlaOp queries) {
  xla::XlaBuilder* builder = sorted.builder();
  const int64_t n = DimensionSize(sorted, 0);
  const int64_t q = DimensionSize(queries, 0);
  const xla::XlaOp is_below =
      xla::Lt(xla::BroadcastInDim(sorted, {q, n}, {1}),
              xla::BroadcastInDim(queries, {q, n}, {0}));
  return xla::Reduce(xla::ConvertElementType(is_below, xla::S32),
                     ConstantInt(builder, 0),
                     xla::CreateScalarAddComputation(xla::S32, builder), {1});
}

xla::XlaOp PrefixSums(xla::XlaOp x) {
  return Scan(x, [](xla::XlaOp a, xla::XlaOp b) { return xla::Add(a, b); });
}

xla::XlaOp PrefixMaxima(xla::XlaOp x) {
  return Scan(x, [](xla::XlaOp a, xla::XlaOp b) { return xla::Max(a, b); });
}

xla::XlaOp IsFirst(xla::XlaOp sorted) {
  xla::PaddingConfig shift;
  xla::PaddingConfig::PaddingConfigDimension* by = shift.add_dimensions();
  by->set_edge_padding_low(1);
  by->set_edge_padding_high(-1);
  // Before the first stands what no key is.
  return xla::Ne(sorted,
                 xla::Pad(sorted, ConstantInt(sorted.builder(), -1), shift));
}

xla::XlaOp Maximum(xla::XlaOp x) {
  xla::XlaBuilder* builder = x.builder();
  return xla::Reduce(x,
                     ConstantInt(builder, std::numeric_limits<int32_t>::min()),
                     xla::CreateScalarMaxComputation(xla::S32, builder), {0});
}

xla::XlaOp Count(xla::XlaOp mask) {
  xla::XlaBuilder* builder = mask.builder();
  return xla::Reduce(xla::ConvertElementType(mask, xla::S32),
                     ConstantInt(builder, 0),
                     xla::CreateScalarAddComputation(xla::S32, builder), {0});
}

}  // namespace tfembed
