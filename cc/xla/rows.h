#ifndef TFEMBED_XLA_ROWS_H_
#define TFEMBED_XLA_ROWS_H_

#include <cstdint>
#include <limits>

#include "cc/xla/builder.h"

// Steps of programs that gather, scatter, search and scan. Indices are int32.
namespace tfembed {

// No id, key or row: greater than all of them, and out of bounds of every
// tensor.
constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

xla::XlaOp ConstantInt(xla::XlaBuilder* builder, int32_t x);

// Returns the static size of a tensor's dimension.
int64_t DimensionSize(xla::XlaOp op, int64_t dimension);

xla::XlaOp Zeros(xla::XlaBuilder* builder, xla::PrimitiveType type,
                 absl::Span<const int64_t> shape);

// [indices] or [indices, width]: entries of [n], or rows of [n, width]. An
// index outside gives some entry.
xla::XlaOp GatherRows(xla::XlaOp from, xla::XlaOp indices);

// Returns `into` [n, width] with rows [m, width] added to the rows at `indices`
// [m], or put in their place. Rows with an index outside of [0, n) are dropped.
// Replaced rows must have distinct indices.
xla::XlaOp AddRows(xla::XlaOp into, xla::XlaOp indices, xla::XlaOp rows);
xla::XlaOp ReplaceRows(xla::XlaOp into, xla::XlaOp indices, xla::XlaOp rows);

// rows [n, width] where `mask` [n], else zeros.
xla::XlaOp ZeroUnless(xla::XlaOp mask, xla::XlaOp rows);

// Returns, for each of `queries` [q], the number of entries of `sorted` [n]
// below it.
xla::XlaOp LowerBound(xla::XlaOp sorted, xla::XlaOp queries);

// Sums, or maxima, of all prefixes of x [n], not negative.
xla::XlaOp PrefixSums(xla::XlaOp x);
xla::XlaOp PrefixMaxima(xla::XlaOp x);

// Returns which entries of `sorted` [n] differ from the entry before.
xla::XlaOp IsFirst(xla::XlaOp sorted);

// The maximum of x [n], and how many of `mask` [n] hold.
xla::XlaOp Maximum(xla::XlaOp x);
xla::XlaOp Count(xla::XlaOp mask);

}  // namespace tfembed

#endif  // TFEMBED_XLA_ROWS_H_
