#include "cc/xla/sorted_ids.h"

#include <optional>
#include <vector>

#include "cc/xla/rows.h"

namespace tfembed {
namespace {

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

}  // namespace

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

}  // namespace tfembed
