#include "cc/core/narrow_update.h"

#include <algorithm>

namespace tfembed {

void NarrowUpdate::Apply(const int64_t* ids, const MutableRow* rows,
                         const float* gradients, int64_t n) {
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {
    end = begin + 1;
    while (end < n && ids[end] != ids[end - 1]) ++end;
    ApplyDistinct(ids + begin, rows + begin, gradients + begin * dim_,
                  end - begin);
  }
}

void NarrowUpdate::ApplyDistinct(const int64_t* ids, const MutableRow* rows,
                                 const float* gradients, int64_t n) {
  const size_t numbers = n * dim_;
  values_.resize(std::max(values_.size(), numbers));
  rows_.assign(rows, rows + n);
  for (int64_t i = 0; i < n; ++i) {
    rows_[i].value = values_.data() + i * dim_;
    rounding_.type().ToFloats(rows[i].value, rows_[i].value, dim_);
  }
  rule_.Apply(rows_.data(), gradients, n, dim_, learning_rate_);
  for (int64_t i = 0; i < n; ++i) {
    const bool is_repeat = has_last_ && ids[i] == last_id_;
    occurrence_ = is_repeat ? occurrence_ + 1 : 0;
    has_last_ = true;
    last_id_ = ids[i];
    rounding_.Round(rows_[i].value, dim_, ids[i], occurrence_, rows[i].value);
  }
}

}  // namespace tfembed
