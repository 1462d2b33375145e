#include "cc/xla/distinct_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/core/simd/dispatch.h"

namespace tfembed {
namespace {

constexpr int64_t kBlock = 64;  // Rows that are on their way at once.
constexpr int64_t kLine = 64 / sizeof(float);

// Numbers rows in the order in which they first come: open addressing, at most
// half full.
class RowNumbers {
 public:
  explicit RowNumbers(int64_t n) {
    while ((int64_t{1} << bits_) < 2 * n) ++bits_;
    cells_.assign(size_t{1} << bits_, {-1, 0});
    rows_.reserve(n);
  }

  // The row's number, and whether it is new.
  std::pair<int32_t, bool> Number(int32_t row) {
    const size_t mask = cells_.size() - 1;
    // The top bits of a product with 2^32 / phi: consecutive rows spread.
    size_t at = (static_cast<uint32_t>(row) * 2654435769u) >> (32 - bits_);
    for (;; at = (at + 1) & mask) {
      Cell& cell = cells_[at];
      if (cell.row == row) return {cell.number, false};
      if (cell.row >= 0) continue;
      cell = {row, static_cast<int32_t>(rows_.size())};
      rows_.push_back(row);
      return {cell.number, true};
    }
  }

  const std::vector<int32_t>& rows() const { return rows_; }

 private:
  struct Cell {
    int32_t row;
    int32_t number;
  };
  int bits_ = 4;
  std::vector<Cell> cells_;
  std::vector<int32_t> rows_;
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

void Fetch(const RowTensors& tensors, const MutableRow& row) {
  for (int64_t c = 0; c < tensors.width; c += kLine) {
    __builtin_prefetch(row.value + c, 1);
    for (size_t s = 0; s < tensors.slots.size(); ++s) {
      if (c < SlotWidth(tensors.row_wise, s, tensors.width)) {
        __builtin_prefetch(row.slots[s] + c, 1);
      }
    }
  }
}

// Applies gradients to rows a block at a time, while the next one's rows come.
void ApplyAll(const UpdateRule& rule, float learning_rate,
              const std::vector<MutableRow>& rows, const float* gradients,
              const RowTensors& tensors) {
  const int64_t n = rows.size();
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    for (int64_t i = end; i < std::min(end + kBlock, n); ++i) {
      Fetch(tensors, rows[i]);
    }
    rule.Apply(rows.data() + begin, gradients + begin * tensors.width,
               end - begin, tensors.width, learning_rate);
  }
}

}  // namespace

void UpdateDistinctRows(const UpdateRule& rule, float learning_rate,
                        const int32_t* ids, const float* gradients, int64_t n,
                        OnNonfinite on_nonfinite, RowTensors* tensors) {
  const int64_t width = tensors->width;
  RowNumbers numbers(n);
  std::vector<float> sums;
  sums.reserve(n * width);
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0 || ids[i] >= tensors->rows) continue;
    const float* gradient = gradients + i * width;
    const auto [number, is_new] = numbers.Number(ids[i]);
    if (is_new) {
      sums.insert(sums.end(), gradient, gradient + width);
    } else {
      float* sum = sums.data() + number * width;
      for (int64_t c = 0; c < width; ++c) sum[c] += gradient[c];
    }
  }
  const Kernels& kernels = ActiveKernels();
  std::vector<MutableRow> rows;
  rows.reserve(numbers.rows().size());
  int64_t kept = 0;
  for (size_t i = 0; i < numbers.rows().size(); ++i) {
    const int32_t row = numbers.rows()[i];
    const float* sum = sums.data() + i * width;
    if (!kernels.all_finite(sum, width) && !on_nonfinite(row)) continue;
    if (kept != static_cast<int64_t>(i)) {
      std::memcpy(sums.data() + kept * width, sum, width * sizeof(float));
    }
    ++kept;
    rows.push_back(RowAt(*tensors, row));
  }
  ApplyAll(rule, learning_rate, rows, sums.data(), *tensors);
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
