#ifndef TFEMBED_XLA_VECTOR_H_
#define TFEMBED_XLA_VECTOR_H_

#include <cmath>

#include "cc/xla/builder.h"

namespace tfembed {

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

// Moves v towards 0 by `by`, which is not negative, and not beyond 0.
inline XlaVector Shrink(const XlaVector& v, const XlaVector& by) {
  return v - XlaVector(xla::Min(xla::Max(v.op(), xla::Neg(by.op())), by.op()));
}

}  // namespace tfembed

#endif  // TFEMBED_XLA_VECTOR_H_
