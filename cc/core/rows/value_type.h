#ifndef TFEMBED_CORE_ROWS_VALUE_TYPE_H_
#define TFEMBED_CORE_ROWS_VALUE_TYPE_H_

#include <cstdint>

namespace tfembed {

// The dtype of a row's numbers.
enum class ElementKind : uint8_t {
  kFloat32,
  kFloat16,
  kBfloat16,
  kFloat64,
  kInt8,
  kInt32,
  kInt64,
  kBool,
};

// A kind of number, and what can be done with n of them that lie one after the
// other at any address. Cheap to copy.
class ValueType {
 public:
  // Not explicit: a kind is a type.
  constexpr ValueType(ElementKind kind = ElementKind::kFloat32) : kind_(kind) {}

  constexpr ElementKind kind() const { return kind_; }
  constexpr bool is_float32() const { return kind_ == ElementKind::kFloat32; }

  // Whether it is float16 or bfloat16.
  bool is_half() const;

  // Bytes of one number.
  int64_t size() const;

  // As TensorFlow calls it: "float32".
  const char* name() const;

  // Whether update rules can train it: its numbers are floats or convert to
  // them and back.
  bool is_trainable() const;

  // Whether numbers can be added; not where they are booleans.
  bool has_addition() const { return kind_ != ElementKind::kBool; }

  // Rounds floats to the nearest, ties to even; to integers toward zero, what
  // does not fit to the nearest that does, NaN to 0.
  void FromDoubles(const double* from, void* to, int64_t n) const;
  void FromFloats(const float* from, void* to, int64_t n) const;

  // REQUIRES: is_trainable().
  void ToFloats(const void* from, float* to, int64_t n) const;

  // As FromFloats, but up or down, as the random bits[i] say, with the
  // probability that makes the mean right (support/half.h). REQUIRES:
  // is_half().
  void RoundByBits(const float* from, const uint16_t* bits, void* to,
                   int64_t n) const;

  // to[i] += from[i], in this type: integers wrap. REQUIRES: has_addition().
  void Add(const void* from, void* to, int64_t n) const;
  // to[i] += from[i] - old[i], likewise: the difference is of this type too.
  void AddChange(const void* from, const void* old, void* to, int64_t n) const;

  // Whether one of them is a NaN; none is of integers and booleans.
  bool HasNan(const void* from, int64_t n) const;

  // The sum of squares; booleans are 0 and 1.
  double SquaredNorm(const void* from, int64_t n) const;

  friend constexpr bool operator==(ValueType a, ValueType b) {
    return a.kind_ == b.kind_;
  }
  friend constexpr bool operator!=(ValueType a, ValueType b) {
    return a.kind_ != b.kind_;
  }

 private:
  ElementKind kind_;
};

// Rounds trained floats to the numbers of a row: to the nearest, or,
// so that changes smaller than half a last place are not lost, up or down by
// chance with the right mean (stochastic rounding: Gupta et al. 2015, "Deep
// learning with limited numerical precision"). Immutable; cheap to copy.
class RowRounding {
 public:
  // To the nearest.
  explicit RowRounding(ValueType type) : type_(type) {}

  // By chance, by bits that depend on seed, step, key, occurrence of the key
  // and column alone. REQUIRES: type.is_half().
  RowRounding(ValueType type, uint64_t seed, uint64_t step);

  ValueType type() const { return type_; }
  bool by_chance() const { return by_chance_; }

  // Writes n numbers of type(). `occurrence` tells writes of one key in one
  // step from another.
  void Round(const float* from, int64_t n, int64_t key, uint64_t occurrence,
             void* row) const;

 private:
  ValueType type_;
  bool by_chance_ = false;
  uint64_t seed_ = 0;  // Another one each step.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_ROWS_VALUE_TYPE_H_
