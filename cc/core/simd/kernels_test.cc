#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "cc/core/simd/dispatch.h"
#include "cc/core/support/row_copy.h"
#include "cc/core/testing/line_start.h"
#include "cc/core/testing/near.h"
#include "cc/core/testing/random_bags.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDims[] = {1, 3, 8, 16, 17, 64, 100, 128, 200};

// Each number of cache lines, as many as are copied at once and more, whole and
// with a rest.
constexpr int64_t kWidths[] = {1,  7,  8,   13,  16,  29,  32,  48,  64,  80,
                               96, 99, 112, 127, 128, 129, 144, 256, 300, 1024};

// Rows in one array, in segments, with and without weights.
struct Pooled {
  Pooled(int64_t dim, bool weighted)
      : table(RandomFloats(20 * dim, 1)), dim(dim), weighted(weighted) {
    for (int64_t i = 0; i < 9; ++i) {
      rows.push_back(table.data() + i * 7 % 20 * dim);
    }
    sums.assign(ends.size() * stride(), 42);
  }

  int64_t stride() const { return dim + 2; }

  void Run(const Kernels& kernels) {
    PoolBlock block;
    block.rows = rows.data();
    block.weights = weighted ? weights.data() : nullptr;
    block.ends = ends.data();
    block.scales = scales.data();
    block.num_segments = ends.size();
    block.dim = dim;
    block.sums = sums.data();
    block.stride = stride();
    block.asks = asks;
    block.begins = asks;
    kernels.pool(block);
  }

  std::vector<float> table;
  const int64_t dim;
  const bool weighted;
  bool asks = false;
  std::vector<const float*> rows;
  std::vector<float> weights = RandomFloats(9, 2);
  std::vector<int64_t> ends = {3, 3, 4, 9};
  std::vector<float> scales = {0.5f, 1, 2, 0.25f};
  std::vector<float> sums;
};

class KernelsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    kernels_ = FindKernels(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "This processor cannot run them.";
  }

  const Kernels* kernels_ = nullptr;
};

TEST_P(KernelsTest, AreFoundByTheirName) {
  EXPECT_STREQ(kernels_->name, GetParam());
}

TEST_P(KernelsTest, PoolSumsScaledSegmentsOfAnyWidth) {
  for (const int64_t dim : kDims) {
    for (const bool weighted : {false, true}) {
      Pooled pooled(dim, weighted);
      pooled.Run(*kernels_);
      int64_t begin = 0;
      for (size_t s = 0; s < pooled.ends.size(); ++s) {
        for (int64_t c = 0; c < dim; ++c) {
          Expected expected;
          for (int64_t i = begin; i < pooled.ends[s]; ++i) {
            const double weight = weighted ? pooled.weights[i] : 1;
            expected.Add(weight * pooled.rows[i][c]);
          }
          expected.Multiply(pooled.scales[s]);
          ASSERT_TRUE(IsNear(pooled.sums[s * pooled.stride() + c], expected))
              << "dim " << dim << " segment " << s;
        }
        EXPECT_EQ(pooled.sums[s * pooled.stride() + dim], 42) << "dim " << dim;
        begin = pooled.ends[s];
      }
    }
  }
}

TEST_P(KernelsTest, PoolGivesTheBitsOfTheBaseline) {
  for (const int64_t dim : kDims) {
    Pooled pooled(dim, true), baseline(dim, true);
    pooled.asks = true;
    pooled.Run(*kernels_);
    baseline.Run(*FindKernels("baseline"));
    EXPECT_EQ(pooled.sums, baseline.sums) << "dim " << dim;
  }
}

TEST_P(KernelsTest, PoolContinuesASumThatWasLeftOpen) {
  for (const int64_t dim : kDims) {
    Pooled whole(dim, true), parts(dim, true);
    whole.Run(*kernels_);
    PoolBlock block;
    block.rows = parts.rows.data();
    block.weights = parts.weights.data();
    const int64_t first_end = 1, second_end = 2;
    block.ends = &first_end;
    block.scales = parts.scales.data();
    block.num_segments = 1;
    block.dim = dim;
    block.sums = parts.sums.data();
    block.open = true;
    kernels_->pool(block);
    block.rows += 1;
    block.weights += 1;
    block.ends = &second_end;
    block.continues = true;
    block.open = false;
    kernels_->pool(block);
    EXPECT_EQ(
        std::memcmp(parts.sums.data(), whole.sums.data(), dim * sizeof(float)),
        0)
        << "dim " << dim;
  }
}

TEST_P(KernelsTest, PoolGivesZeroForAScaleOfZeroEvenOverNaN) {
  Pooled pooled(17, true);
  pooled.table.assign(pooled.table.size(), std::nanf(""));
  pooled.scales.assign(pooled.scales.size(), 0);
  pooled.Run(*kernels_);
  for (int64_t c = 0; c < 17; ++c) EXPECT_EQ(pooled.sums[c], 0);
}

TEST_P(KernelsTest, AllFiniteFindsANaNOrInfinityAnywhere) {
  for (const int64_t dim : kDims) {
    std::vector<float> x(dim, std::numeric_limits<float>::max());
    EXPECT_TRUE(kernels_->all_finite(x.data(), dim)) << "dim " << dim;
    for (int64_t i = 0; i < dim; ++i) {
      for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
        x[i] = bad;
        EXPECT_FALSE(kernels_->all_finite(x.data(), dim)) << i << " " << bad;
      }
      x[i] = -1;
    }
  }
}

// A table of rows of `dim` floats at cache lines, each followed by some that
// are not its own, and given rows. Rows 0 to 59 of them are in the table;
// writes go to them in a mixed order, some twice, some to none.
struct Written {
  static constexpr int64_t kRows = 60;
  static constexpr int64_t kWrites = 75;

  explicit Written(int64_t dim)
      : dim(dim),
        stride((dim + 15) / 16 * 16 + 16),
        given(RandomFloats(kWrites * dim, 3)),
        old(RandomFloats(kWrites * dim, 5)),
        memory(RandomFloats(kRows * stride + kSpareFloats, 4)) {
    table = LineStart(&memory);
    before.assign(table, table + kRows * stride);
    for (int64_t i = 0; i < kWrites; ++i) {
      positions.push_back(i * 7 % kWrites);
      rows.push_back(i % 10 == 4 ? nullptr : Row(i * 11 % kRows));
      is_new[i] = i % 3 == 0;
    }
  }

  float* Row(int64_t row) { return table + row * stride; }

  WriteBlock Block(int64_t n) {
    WriteBlock block;
    block.rows = rows.data();
    block.is_new = is_new;
    block.positions = positions.data();
    block.n = n;
    block.num_ahead = kWrites - n;
    block.given = given.data();
    block.dim = dim;
    return block;
  }

  // Expects change(float, given, old) in the rows that hold something, applied
  // in the order of the writes.
  template <typename Change>
  void ExpectRows(int64_t n, Change change) {
    std::vector<float> expected = before;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; rows[i] != nullptr && c < dim; ++c) {
        const int64_t at = positions[i] * dim + c;
        float& to = expected[rows[i] - table + c];
        to = is_new[i] ? given[at] : change(to, given[at], old[at]);
      }
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(table[i], expected[i])
          << "float " << i % stride << " of row " << i / stride << ", width "
          << dim << ", " << n << " writes";
    }
  }

  const int64_t dim;
  const int64_t stride;
  std::vector<float> given;
  std::vector<float> old;
  std::vector<float> memory;
  std::vector<float> before;
  float* table;
  std::vector<float*> rows;
  bool is_new[kWrites];
  std::vector<uint32_t> positions;
};

constexpr int64_t kNumWrites[] = {0, 1, 31, Written::kWrites};

TEST_P(KernelsTest, StreamRowsCopiesTheRowsThatThereAre) {
  constexpr int64_t kRows = 37;
  for (const int64_t lines : {1, 2, 3, 4, 5}) {
    const int64_t floats = 16 * lines;
    const std::vector<float> from = RandomFloats(kRows * floats + 1, 1);
    std::vector<float> memory(kRows * floats + 1 + kSpareFloats, 42);
    std::vector<const float*> rows(kRows);
    for (int64_t i = 0; i < kRows; ++i) {  // At any address, in any order.
      const float* const row = from.data() + i * 5 % kRows * floats + i % 2;
      rows[i] = i % 7 == 3 ? nullptr : row;
    }
    ReadBlock block;
    block.rows = rows.data();
    block.n = kRows;
    block.lines = lines;
    block.values = LineStart(&memory);
    kernels_->stream_rows(block);
    StreamedRows();
    for (int64_t at = 0; at < kRows * floats; ++at) {
      const float* const row = rows[at / floats];
      ASSERT_EQ(block.values[at], row == nullptr ? 42 : row[at % floats]) << at;
    }
    EXPECT_EQ(block.values[kRows * floats], 42);
  }
}

TEST_P(KernelsTest, CopyRowsWritesEachRowInOrder) {
  for (const int64_t dim : kWidths) {
    for (const int64_t n : kNumWrites) {
      for (const bool streams : {false, true}) {
        if (streams && dim % 16 != 0) continue;
        Written written(dim);
        WriteBlock block = written.Block(n);
        block.streams = streams;
        EXPECT_EQ(kernels_->copy_rows(block), 0);
        StreamedRows();
        written.ExpectRows(n, [](float, float given, float) { return given; });
      }
    }
  }
}

TEST_P(KernelsTest, RowsWithoutPositionsAreGivenInOrder) {
  for (const int64_t dim : kWidths) {
    SCOPED_TRACE(dim);
    for (const bool adds : {false, true}) {
      Written written(dim);
      std::iota(written.positions.begin(), written.positions.end(), 0);
      std::fill_n(written.is_new, Written::kWrites, false);
      WriteBlock block = written.Block(Written::kWrites);
      block.positions = nullptr;
      block.is_new = nullptr;
      adds ? kernels_->add_rows(block)
           : static_cast<void>(kernels_->copy_rows(block));
      written.ExpectRows(block.n, [&](float row, float given, float) {
        return adds ? row + given : given;
      });
    }
  }
}

TEST_P(KernelsTest, CopyRowsCountsRowsWithANaNAnywhere) {
  for (const int64_t dim : kWidths) {
    for (int64_t c = 0; c < dim; ++c) {
      Written written(dim);
      const WriteBlock block = written.Block(Written::kWrites);
      const auto spoil = [&](int64_t i, float value) {
        written.given[written.positions[i] * dim + c] = value;
      };
      spoil(2, HUGE_VALF);  // A number.
      spoil(5, std::nanf(""));
      spoil(6, -std::nanf(""));
      spoil(14, std::nanf(""));  // Goes nowhere.
      EXPECT_EQ(kernels_->copy_rows(block), 2) << c << " of " << dim;
    }
  }
}

TEST_P(KernelsTest, AddRowsAddsEachRowInOrder) {
  for (const int64_t dim : kWidths) {
    for (const int64_t n : kNumWrites) {
      Written written(dim);
      kernels_->add_rows(written.Block(n));
      written.ExpectRows(
          n, [](float to, float given, float) { return to + given; });
    }
  }
}

TEST_P(KernelsTest, AddRowsAddsDifferences) {
  for (const int64_t dim : kWidths) {
    for (const int64_t n : kNumWrites) {
      Written written(dim);
      WriteBlock block = written.Block(n);
      block.old = written.old.data();
      kernels_->add_rows(block);
      written.ExpectRows(n, [](float to, float given, float old) {
        return to + (given - old);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KernelsTest,
                         testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& target) {
                           return std::string(target.param);
                         });

TEST(DispatchTest, UnknownKernelsAreNotFound) {
  EXPECT_EQ(FindKernels("sse9"), nullptr);
}

TEST(DispatchTest, ActiveKernelsCanBeSet) {
  const Kernels& before = ActiveKernels();
  SetActiveKernels(*FindKernels("baseline"));
  EXPECT_STREQ(ActiveKernels().name, "baseline");
  SetActiveKernels(before);
}

}  // namespace
}  // namespace tfembed
