#ifndef TFEMBED_CORE_NARROW_UPDATE_H_
#define TFEMBED_CORE_NARROW_UPDATE_H_

#include <cstdint>
#include <vector>

#include "cc/core/mutable_row.h"
#include "cc/core/optimizers/interface.h"
#include "cc/core/row_rounding.h"

namespace tfembed {

// Applies an update rule, which works on floats, to rows of float16 or
// bfloat16: the values of a block of rows become floats, are moved and rounded
// back. Slots are floats. For one task of an update; borrows the rule.
class NarrowUpdate {
 public:
  NarrowUpdate(const UpdateRule& rule, float learning_rate, int64_t dim,
               const RowRounding& rounding)
      : rule_(rule),
        learning_rate_(learning_rate),
        dim_(dim),
        rounding_(rounding) {}

  // As UpdateRule::Apply; rows[i] is that of ids[i], and its value `dim`
  // numbers of the rounding's type. Equal ids follow each other, in this call
  // and from call to call; each of them finds the row as the one before has
  // rounded it.
  void Apply(const int64_t* ids, const MutableRow* rows, const float* gradients,
             int64_t n);

 private:
  void ApplyDistinct(const int64_t* ids, const MutableRow* rows,
                     const float* gradients, int64_t n);

  const UpdateRule& rule_;
  const float learning_rate_;
  const int64_t dim_;
  const RowRounding rounding_;
  std::vector<float> values_;
  std::vector<MutableRow> rows_;
  bool has_last_ = false;
  int64_t last_id_ = 0;
  uint64_t occurrence_ = 0;  // Of the last id.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_NARROW_UPDATE_H_
