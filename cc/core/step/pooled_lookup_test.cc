#include "cc/core/step/pooled_lookup.h"

#include <cmath>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/table/static_table.h"
#include "cc/core/testing/kernels_test_base.h"
#include "cc/core/testing/map_table.h"
#include "cc/core/testing/near.h"
#include "cc/core/testing/random_bags.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kRows = 40;

StaticTable Table(std::vector<float>* values, int64_t dim) {
  StaticTable table;
  table.name = "user";
  table.values = values->data();
  table.num_rows = values->size() / dim;
  table.dim = dim;
  return table;
}

// Floats from the beginning of a cache line on.
template <typename T>
struct LineAllocator {
  using value_type = T;
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), kLine));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  bool operator==(const LineAllocator&) const { return true; }
  bool operator!=(const LineAllocator&) const { return false; }
  static constexpr std::align_val_t kLine{64};
};
using AlignedFloats = std::vector<float, LineAllocator<float>>;

// Looks one feature up in a table of random values.
class Lookup {
 public:
  explicit Lookup(int64_t dim, int64_t padding = 3)
      : dim_(dim),
        padding_(padding),
        values_(RandomFloats(kRows * dim, 7)),
        source_(ReadStaticTable(Table(&values_, dim))) {}

  absl::Status Run(const IdBags& bags, Executor* executor) {
    activations_.assign(bags.num_bags * stride(), 42);
    const PooledFeature feature = {source_.get(), bags, activations_.data(),
                                   stride()};
    return PooledLookup({&feature, 1}, executor);
  }

  int64_t stride() const { return dim_ + padding_; }
  const AlignedFloats& activations() const { return activations_; }

  void ExpectRight(const IdBags& bags) const {
    for (int64_t bag = 0; bag < bags.num_bags; ++bag) {
      const double divisor = BagDivisor(bags, bag);
      for (int64_t c = 0; c < dim_; ++c) {
        Expected sum;
        for (int64_t i = bags.begin_of(bag); i < bags.begin_of(bag + 1); ++i) {
          const double weight = bags.weights ? bags.weights[i] : 1;
          sum.Add(weight * values_[bags.ids[i] * dim_ + c]);
        }
        sum.Multiply(divisor == 0 ? 0 : 1 / divisor);
        ASSERT_TRUE(IsNear(activations_[bag * stride() + c], sum))
            << "bag " << bag << " column " << c;
      }
      if (padding_ > 0) ASSERT_EQ(activations_[bag * stride() + dim_], 42);
    }
  }

 private:
  const int64_t dim_;
  const int64_t padding_;
  std::vector<float> values_;
  std::unique_ptr<RowSource> source_;
  AlignedFloats activations_;
};

class PooledLookupTest : public KernelsTestBase<const char*> {
 protected:
  ThreadExecutor executor_{2};
};

TEST_P(PooledLookupTest, CombinesBagsOfAnyShapeAndWidth) {
  uint32_t seed = 0;
  for (const int64_t dim : {1, 3, 8, 16, 17, 64, 100, 128}) {
    for (const Combiner combiner :
         {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
      for (const bool has_weights : {false, true}) {
        for (const bool has_splits : {false, true}) {
          RandomBagsOptions options;
          options.num_bags = 300;
          options.max_ids = dim == 3 ? 900 : 8;  // Longer than a block.
          options.combiner = combiner;
          options.has_weights = has_weights;
          options.has_splits = has_splits;
          const RandomBags random(options, ++seed);
          Lookup lookup(dim);
          ASSERT_TRUE(lookup.Run(random.bags(), &executor_).ok());
          lookup.ExpectRight(random.bags());
        }
      }
    }
  }
}

// Whole lines of 10 MB in all go past the caches, but for bags that span
// blocks; with 3 floats between two bags they are not whole.
TEST_P(PooledLookupTest, CombinesLargeBatches) {
  for (const int64_t padding : {0, 16, 3}) {
    RandomBagsOptions options;
    options.num_bags = 40000;
    options.max_ids = 5;
    options.combiner = Combiner::kMean;
    options.has_splits = true;
    const RandomBags random(options, 5);
    Lookup lookup(64, padding);
    ASSERT_TRUE(lookup.Run(random.bags(), &executor_).ok());
    lookup.ExpectRight(random.bags());
  }
}

TEST_P(PooledLookupTest, GivesTheSameBitsOnOneThreadAndOnTheBaseline) {
  RandomBagsOptions options;
  options.num_bags = 3000;
  options.combiner = Combiner::kMean;
  options.has_weights = true;
  const RandomBags random(options, 1);
  Lookup lookup(64), serial(64), baseline(64);
  ASSERT_TRUE(lookup.Run(random.bags(), &executor_).ok());
  ASSERT_TRUE(serial.Run(random.bags(), nullptr).ok());
  EXPECT_EQ(lookup.activations(), serial.activations());
  SetActiveKernels(*FindKernels("baseline"));
  ASSERT_TRUE(baseline.Run(random.bags(), nullptr).ok());
  EXPECT_EQ(lookup.activations(), baseline.activations());
}

TEST_P(PooledLookupTest, GivesZeroWhereTheDivisorIsZero) {
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    const int64_t ids[] = {1, 3, 2};
    const int64_t splits[] = {0, 2, 2, 3};
    const float weights[] = {1, combiner == Combiner::kMean ? -1.0f : 0, 0};
    IdBags bags = {ids, splits, weights, 3, combiner};
    Lookup lookup(4);
    ASSERT_TRUE(lookup.Run(bags, &executor_).ok());
    for (int64_t c = 0; c < 4; ++c) {
      if (combiner == Combiner::kMean) {
        EXPECT_EQ(lookup.activations()[c], 0);
      }
      EXPECT_EQ(lookup.activations()[lookup.stride() + c], 0);
      EXPECT_EQ(lookup.activations()[2 * lookup.stride() + c], 0);
    }
  }
}

TEST_P(PooledLookupTest, ReadsInitialRowsOfMissingIds) {
  MapTable table(5, {});
  MutableRow row;
  const int64_t present = 7;
  table.FindOrInsert(table.PartOf(table.Rank(7)), &present, 1, &row);
  row.value[0] = 100;
  const int64_t ids[] = {7, 8, -9};
  const int64_t splits[] = {0, 3};
  std::vector<float> activations(5);
  const PooledFeature feature = {
      &table, {ids, splits, nullptr, 1, Combiner::kSum}, activations.data(), 5};
  ASSERT_TRUE(PooledLookup({&feature, 1}, &executor_).ok());
  EXPECT_FLOAT_EQ(activations[0], 100 + 2 * 0.25f - 0.001f);
  EXPECT_FLOAT_EQ(activations[4], 3 * 0.25f + 0.006f);
  EXPECT_EQ(table.size(), 1);
}

TEST_P(PooledLookupTest, NamesAnIdThatCannotBeInItsTable) {
  RandomBagsOptions options;
  options.num_bags = 5000;
  RandomBags random(options, 3);
  random.ids()[random.ids().size() - 2] = kRows;
  Lookup lookup(16);
  const absl::Status status = lookup.Run(random.bags(), &executor_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "Id 40 is")) << status;
}

TEST_P(PooledLookupTest, TakesBatchesWithoutBagsOrIds) {
  Lookup lookup(16);
  const int64_t splits[] = {0, 0, 0};
  EXPECT_TRUE(lookup.Run({nullptr, splits, nullptr, 0}, &executor_).ok());
  ASSERT_TRUE(lookup.Run({nullptr, splits, nullptr, 2}, &executor_).ok());
  EXPECT_EQ(lookup.activations()[0], 0);
  EXPECT_EQ(lookup.activations()[lookup.stride() + 15], 0);
}

INSTANTIATE_TEST_SUITE_P(Targets, PooledLookupTest,
                         testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& target) {
                           return std::string(target.param);
                         });

}  // namespace
}  // namespace tfembed
