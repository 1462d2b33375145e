#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cc/core/simd/dispatch.h"
#include "cc/core/testing/near.h"
#include "cc/core/testing/random_bags.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDims[] = {1, 3, 8, 16, 17, 64, 100, 128, 200};

// Each number of cache lines, as many as are copied at once and more, whole and
// with a rest.
constexpr int64_t kWidths[] = {1,  7,   16,  29,  32,  48,  64,  80,  96,
                               99, 112, 127, 128, 129, 144, 256, 300, 1024};

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
    kernels.pool(block);
  }

  std::vector<float> table;
  const int64_t dim;
  const bool weighted;
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

TEST_P(KernelsTest, CopyRowHasNanCopiesAllAndFindsOneAtAnyPlace) {
  for (const int64_t dim : kWidths) {
    std::vector<float> from = RandomFloats(dim, 3);
    std::vector<float> to(dim + 1, 42);
    from[0] = HUGE_VALF;  // A number.
    EXPECT_FALSE(kernels_->copy_row_has_nan(from.data(), to.data(), dim));
    for (int64_t i = 0; i < dim; ++i) {
      ASSERT_EQ(to[i], from[i]) << i << " of " << dim;
    }
    for (int64_t i = 0; i < dim; ++i) {
      const float number = from[i];
      from[i] = std::nanf("");
      EXPECT_TRUE(kernels_->copy_row_has_nan(from.data(), to.data(), dim))
          << i << " of " << dim;
      EXPECT_TRUE(std::isnan(to[i])) << i << " of " << dim;
      from[i] = number;
    }
    EXPECT_EQ(to[dim], 42) << "Wrote past the row of " << dim;
  }
}

TEST_P(KernelsTest, AddRowAddsEachFloatOnce) {
  for (const int64_t dim : kWidths) {
    const std::vector<float> from = RandomFloats(dim, 3);
    const std::vector<float> before = RandomFloats(dim + 1, 4);
    std::vector<float> to = before;
    kernels_->add_row(from.data(), to.data(), dim);
    for (int64_t i = 0; i < dim; ++i) {
      ASSERT_EQ(to[i], before[i] + from[i]) << i << " of " << dim;
    }
    EXPECT_EQ(to[dim], before[dim]) << "Wrote past the row of " << dim;
  }
}

TEST_P(KernelsTest, AddChangeAddsEachDifferenceOnce) {
  for (const int64_t dim : kWidths) {
    const std::vector<float> from = RandomFloats(dim, 3);
    const std::vector<float> old = RandomFloats(dim, 5);
    const std::vector<float> before = RandomFloats(dim + 1, 4);
    std::vector<float> to = before;
    kernels_->add_change(from.data(), old.data(), to.data(), dim);
    for (int64_t i = 0; i < dim; ++i) {
      ASSERT_EQ(to[i], before[i] + (from[i] - old[i])) << i << " of " << dim;
    }
    EXPECT_EQ(to[dim], before[dim]) << "Wrote past the row of " << dim;
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
