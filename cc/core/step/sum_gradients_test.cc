#include <algorithm>
#include <limits>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/testing/gradient_features.h"
#include "cc/core/testing/near.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

void ExpectSums(const GradientFeatures& features, int64_t dim,
                const SummedGradients& summed) {
  const auto expected = features.Sums();
  ASSERT_EQ(summed.ids.size(), expected.size());
  ASSERT_EQ(summed.rows.size(), expected.size() * dim);
  size_t i = 0;
  for (const auto& [id, sum] : expected) {
    ASSERT_EQ(summed.ids[i], id);
    for (int64_t c = 0; c < dim; ++c) {
      ASSERT_TRUE(IsNear(summed.rows[i * dim + c], sum[c])) << "id " << id;
    }
    ++i;
  }
}

TEST(SumGradientsTest, SumsEveryIdOverFeaturesAndBags) {
  uint32_t seed = 0;
  for (const int64_t dim : {1, 3, 16, 17, 64, 100}) {
    for (const Combiner combiner :
         {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
      for (const bool has_weights : {false, true}) {
        GradientFeatures features(dim);
        RandomBagsOptions options;
        options.combiner = combiner;
        options.has_weights = has_weights;
        features.Add(options, seed += 2);
        options.has_weights = false;
        options.has_splits = false;
        features.Add(options, seed += 2);
        ExpectSums(features, dim,
                   SumGradients(features.features(), dim, nullptr).value());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(SumGradientsTest, TakesAnyIdsAndPutsThemInOrder) {
  for (const bool has_weights : {false, true}) {
    GradientFeatures features(4);
    RandomBagsOptions options;
    options.has_weights = has_weights;
    features.Add(options, 1);
    std::vector<int64_t>& ids = features.bags(0).ids();
    ids[0] = std::numeric_limits<int64_t>::max();
    ids[1] = std::numeric_limits<int64_t>::min();
    ids[2] = -1;
    ids[3] = std::numeric_limits<int64_t>::max();
    ExpectSums(features, 4,
               SumGradients(features.features(), 4, nullptr).value());
  }
}

TEST(SumGradientsTest, GivesTheSameBitsWhateverTheThreads) {
  for (const bool has_weights : {false, true}) {
    GradientFeatures features(16);
    RandomBagsOptions options;
    options.num_bags = 5000;
    options.num_rows = 3000;
    options.has_weights = has_weights;
    features.Add(options, 1);
    features.Add(options, 3);
    const SummedGradients serial =
        SumGradients(features.features(), 16, nullptr).value();
    ExpectSums(features, 16, serial);
    for (const int threads : {2, 3, 5}) {
      ThreadExecutor executor(threads);
      const SummedGradients summed =
          SumGradients(features.features(), 16, &executor).value();
      EXPECT_EQ(summed.ids, serial.ids);
      EXPECT_EQ(summed.rows, serial.rows);
    }
  }
}

TEST(SumGradientsTest, SumsAnIdThatComesThousandsOfTimes) {
  GradientFeatures features(8);
  RandomBagsOptions options;
  options.num_bags = 4000;
  options.num_rows = 2;
  features.Add(options, 1);
  ThreadExecutor executor(2);
  ExpectSums(features, 8,
             SumGradients(features.features(), 8, &executor).value());
}

// Gradients of one sign, so that rounding errors add up.
GradientFeatures OftenIdOne(int64_t others) {
  GradientFeatures features(3);
  RandomBagsOptions options;
  options.num_bags = 500000;
  options.has_splits = false;
  features.Add(options, 1);
  std::vector<int64_t>& ids = features.bags(0).ids();
  std::fill(ids.begin(), ids.end(), 1);
  for (int64_t i = 0; i < others; ++i) ids[i] = 0;
  std::vector<float>& gradients = features.gradients(0);
  std::fill(gradients.begin(), gradients.end(), 0.1f);
  return features;
}

TEST(SumGradientsTest, SumsAnIdThatComesHalfAMillionTimes) {
  const GradientFeatures features = OftenIdOne(0);
  ExpectSums(features, 3,
             SumGradients(features.features(), 3, nullptr).value());
}

TEST(SumGradientsTest, GivesTheSameBitsWhereverARunBegins) {
  std::vector<float> last;
  for (const int64_t others : {7, 511, 512, 1000}) {
    GradientFeatures features = OftenIdOne(others);
    std::vector<float>& gradients = features.gradients(0);
    for (size_t i = others * 4; i < gradients.size(); ++i) {
      gradients[i] = static_cast<float>((i - others * 4) % 97);
    }
    std::fill(gradients.end() - 4 * (1000 - others), gradients.end(), 0.0f);
    const SummedGradients summed =
        SumGradients(features.features(), 3, nullptr).value();
    ASSERT_EQ(summed.ids, (std::vector<int64_t>{0, 1}));
    const std::vector<float> rows(summed.rows.begin() + 3, summed.rows.end());
    if (!last.empty()) {
      EXPECT_EQ(rows, last) << others;
    }
    last = rows;
  }
}

TEST(SumGradientsTest, GivesNothingForNoIds) {
  EXPECT_TRUE(SumGradients({}, 8, nullptr).value().ids.empty());
  GradientFeatures features(8);
  RandomBagsOptions options;
  options.max_ids = 0;
  features.Add(options, 1);
  EXPECT_TRUE(
      SumGradients(features.features(), 8, nullptr).value().ids.empty());
}

}  // namespace
}  // namespace tfembed
