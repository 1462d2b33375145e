#include "cc/xla/sorted_ids.h"

#include "cc/xla/rows.h"

namespace tfembed {
namespace {

// Both by the first, which keeps equal ones in their order.
void SortPairs(xla::XlaOp* first, xla::XlaOp* second) {
  xla::XlaBuilder* builder = first->builder();
  const xla::XlaOp sorted =
      xla::Sort({*first, *second},
                xla::CreateScalarLtComputation({xla::S32, xla::S32}, builder),
                /*dimension=*/0, /*is_stable=*/true);
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
  SortPairs(&sorted.keys, &sorted.order);
  const xla::XlaOp is_first = IsFirst(sorted.keys);
  const xla::XlaOp has_row = xla::Ne(sorted.keys, none);
  sorted.distinct = xla::Sort(
      {xla::Select(is_first, sorted.keys, none)},
      xla::CreateScalarLtComputation({xla::S32}, builder), /*dimension=*/0);
  const xla::XlaOp place =
      xla::Sub(PrefixSums(xla::ConvertElementType(is_first, xla::S32)),
               ConstantInt(builder, 1));
  // Back into the order of the ids.
  xla::XlaOp order = sorted.order;
  sorted.places = xla::Select(has_row, place, none);
  SortPairs(&order, &sorted.places);
  return sorted;
}

}  // namespace tfembed
