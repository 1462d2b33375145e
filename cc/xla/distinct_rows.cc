#include "cc/xla/distinct_rows.h"

#include <algorithm>
#include <cstring>

#include "absl/base/attributes.h"
#include "cc/core/simd/dispatch.h"

namespace tfembed {
namespace {

constexpr int64_t kBlock = 64;  // Rows that are on their way at once.
constexpr int64_t kLine = 64 / sizeof(float);

// Where the gradients of each distinct row are: a list for each, in order. Rows
// are numbered as they first come. Open addressing, at most half full.
class Occurrences {
 public:
  explicit Occurrences(int64_t n) : next_(n, -1) {
    while ((int64_t{1} << bits_) < 2 * n) ++bits_;
    cells_.assign(size_t{1} << bits_, {-1, 0});
    lists_.reserve(n);
  }

  // The i-th gradient belongs to `row`.
  void Add(int32_t row, int32_t i) {
    const size_t mask = cells_.size() - 1;
    // The top bits of a product with 2^32 / phi: consecutive rows spread.
    size_t at = (static_cast<uint32_t>(row) * 2654435769u) >> (32 - bits_);
    for (;; at = (at + 1) & mask) {
      Cell& cell = cells_[at];
      if (cell.row < 0) {
        cell = {row, static_cast<int32_t>(lists_.size())};
        lists_.push_back({row, i, i});
        return;
      }
      if (cell.row != row) continue;
      List& list = lists_[cell.list];
      next_[list.last] = i;
      list.last = i;
      return;
    }
  }

  int64_t size() const { return lists_.size(); }
  int32_t row(int64_t number) const { return lists_[number].row; }

  // The sum of a row's gradients, in the order in which they came.
  void Sum(int64_t number, const float* gradients, int64_t width,
           float* sum) const {
    const int32_t first = lists_[number].first;
    std::memcpy(sum, gradients + first * width, width * sizeof(float));
    for (int32_t i = next_[first]; i >= 0; i = next_[i]) {
      const float* gradient = gradients + i * width;
      for (int64_t c = 0; c < width; ++c) sum[c] += gradient[c];
    }
  }

 private:
  struct Cell {
    int32_t row;
    int32_t list;
  };
  struct List {
    int32_t row;
    int32_t first;
    int32_t last;
  };
  int bits_ = 4;
  std::vector<Cell> cells_;
  std::vector<List> lists_;
  std::vector<int32_t> next_;  // Of the same row, or -1.
};

MutableRow RowAt(const RowTensors& tensors, int64_t row) {
  MutableRow result;
  result.value = tensors.values + row * tensors.width;
  for (size_t s = 0; s < tensors.slots.size(); ++s) {
    result.slots[s] =
        tensors.slots[s] + row * SlotWidth(tensors.row_wise, s, tensors.width);
  }
  return result;
}

// Always inline: see PrefetchRow.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void Fetch(const RowTensors& tensors,
                                               const MutableRow& row) {
  for (int64_t c = 0; c < tensors.width; c += kLine) {
    __builtin_prefetch(row.value + c, 1);
    for (size_t s = 0; s < tensors.slots.size(); ++s) {
      if (c < SlotWidth(tensors.row_wise, s, tensors.width)) {
        __builtin_prefetch(row.slots[s] + c, 1);
      }
    }
  }
}

}  // namespace

void UpdateDistinctRows(const UpdateRule& rule, float learning_rate,
                        const int32_t* ids, const float* gradients, int64_t n,
                        OnNonfinite on_nonfinite, RowTensors* tensors) {
  const int64_t width = tensors->width;
  Occurrences occurrences(n);
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] >= 0 && ids[i] < tensors->rows) occurrences.Add(ids[i], i);
  }
  const Kernels& kernels = ActiveKernels();
  // Sums of a block at a time: those of all rows would be as large as the
  // gradients, and fresh memory in each step.
  std::vector<float> sums(kBlock * width);
  std::vector<MutableRow> rows(kBlock);
  for (int64_t begin = 0; begin < occurrences.size(); begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, occurrences.size());
    const int64_t fetched = std::min(end + kBlock, occurrences.size());
    for (int64_t i = end; i < fetched; ++i) {
      Fetch(*tensors, RowAt(*tensors, occurrences.row(i)));
    }
    int64_t kept = 0;
    for (int64_t i = begin; i < end; ++i) {
      float* sum = sums.data() + kept * width;
      occurrences.Sum(i, gradients, width, sum);
      const int32_t row = occurrences.row(i);
      if (!kernels.all_finite(sum, width) && !on_nonfinite(row)) continue;
      rows[kept++] = RowAt(*tensors, row);
    }
    rule.Apply(rows.data(), sums.data(), kept, width, learning_rate);
  }
}

void UpdateInOrder(const UpdateRule& rule, float learning_rate,
                   const int32_t* ids, const float* gradients, int64_t n,
                   OnNonfinite on_nonfinite, RowTensors* tensors) {
  const Kernels& kernels = ActiveKernels();
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0 || ids[i] >= tensors->rows) continue;
    const float* gradient = gradients + i * tensors->width;
    if (!kernels.all_finite(gradient, tensors->width) &&
        !on_nonfinite(ids[i])) {
      continue;
    }
    const MutableRow row = RowAt(*tensors, ids[i]);
    rule.Apply(&row, gradient, 1, tensors->width, learning_rate);
  }
}

}  // namespace tfembed
