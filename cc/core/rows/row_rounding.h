#ifndef TFEMBED_CORE_ROWS_ROW_ROUNDING_H_
#define TFEMBED_CORE_ROWS_ROW_ROUNDING_H_

#include <cstdint>

#include "cc/core/rows/value_type.h"

namespace tfembed {

// How trained floats become the numbers of a row: rounded to the nearest, or,
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

#endif  // TFEMBED_CORE_ROWS_ROW_ROUNDING_H_
