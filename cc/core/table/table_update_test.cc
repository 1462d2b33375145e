#include <cmath>
#include <memory>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/step/pooled_lookup.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/gradient_features.h"
#include "cc/core/testing/near.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 12;
constexpr int64_t kRows = 2000;
constexpr float kInitialValue = 0.5f;
constexpr float kLearningRate = 0.1f;

// A hash table under Adagrad and features that update it.
class TableUpdateTest : public testing::Test {
 protected:
  TableUpdateTest() {
    table_ = MakeTestTable(kDim, kInitialValue);
    EXPECT_TRUE(table_
                    ->SetSlots({"adagrad", rule_->slot_names(),
                                rule_->slot_initial_values()})
                    .ok());
    RandomBagsOptions options;
    options.num_bags = 2000;
    options.num_rows = kRows;
    options.combiner = Combiner::kMean;
    features_.Add(options, 1);
    options.has_weights = true;
    features_.Add(options, 3);
  }

  absl::Status Update(Executor* executor) {
    return Update(features_, executor);
  }

  absl::Status Update(const GradientFeatures& features, Executor* executor) {
    const std::unique_ptr<RowSink> sink = table_->Write();
    TableUpdate update;
    update.sink = sink.get();
    update.rule = rule_.get();
    update.learning_rate = kLearningRate;
    update.features = features.features();
    return GroupedUpdate({&update, 1}, NonFinite::kSkip, executor);
  }

  std::vector<float> Values() const {
    std::vector<int64_t> ids(kRows);
    for (int64_t id = 0; id < kRows; ++id) ids[id] = id;
    std::vector<float> values(kRows * kDim);
    table_->Lookup(ids, values.data(), nullptr, nullptr);
    return values;
  }

  const std::unique_ptr<UpdateRule> rule_ =
      UpdateRule::Parse("adagrad").value();
  std::unique_ptr<EmbeddingTable> table_;
  GradientFeatures features_{kDim};
};

TEST_F(TableUpdateTest, InsertsAndUpdatesTheRowsOfAStep) {
  ThreadExecutor executor(2);
  ASSERT_TRUE(Update(&executor).ok());
  const auto sums = features_.Sums();
  EXPECT_EQ(table_->size(), sums.size());
  const std::vector<float> values = Values();
  for (const auto& [id, sum] : sums) {
    for (int64_t c = 0; c < kDim; ++c) {
      const double root = std::sqrt(0.1 + sum[c].value * sum[c].value);
      ASSERT_TRUE(IsNear(values[id * kDim + c],
                         {kInitialValue - kLearningRate * sum[c].value / root,
                          kInitialValue + kLearningRate * sum[c].terms / root}))
          << "id " << id;
    }
  }
}

TEST_F(TableUpdateTest, GivesTheSameBitsOnOneThreadAndOnTwo) {
  ThreadExecutor executor(2);
  ASSERT_TRUE(Update(&executor).ok());
  ASSERT_TRUE(Update(&executor).ok());
  const std::vector<float> parallel = Values();
  table_->Clear();
  ASSERT_TRUE(Update(nullptr).ok());
  ASSERT_TRUE(Update(nullptr).ok());
  EXPECT_EQ(Values(), parallel);
}

TEST_F(TableUpdateTest, TrainsIdsThatAreFarApartAsItTrainsNeighbours) {
  GradientFeatures features(kDim);
  RandomBagsOptions options;
  options.num_bags = 3000;
  options.num_rows = kRows;
  features.Add(options, 1);
  features.Add(options, 3);
  std::vector<float> expected;
  // Ranks of 32 bits, and of 64; see entry_ranks.h.
  for (const int64_t stride :
       {int64_t{1}, int64_t{1} << 20, int64_t{1} << 52}) {
    const auto id_of = [stride](int64_t id) {
      return (id - kRows / 2) * stride;
    };
    GradientFeatures apart = features;
    for (int64_t f : {0, 1}) {
      for (int64_t& id : apart.bags(f).ids()) id = id_of(id);
    }
    for (const int threads : {1, 2}) {
      table_->Clear();
      ThreadExecutor executor(threads);
      ASSERT_TRUE(Update(apart, &executor).ok());
      ASSERT_TRUE(Update(apart, &executor).ok());
      std::vector<int64_t> ids;
      for (int64_t id = 0; id < kRows; ++id) ids.push_back(id_of(id));
      const std::vector<float> values = LookUp(*table_, ids);
      if (expected.empty()) expected = values;
      EXPECT_EQ(values, expected) << stride << ", " << threads << " threads";
    }
  }
}

TEST_F(TableUpdateTest, PoolsTheSameRowsThatItLooksUp) {
  ASSERT_TRUE(Update(nullptr).ok());
  RandomBagsOptions options;
  options.num_bags = 3000;
  options.num_rows = kRows;
  RandomBags random(options, 9);  // Some of its ids are missing.
  std::vector<float> activations(options.num_bags * kDim);
  {
    const std::unique_ptr<RowSource> source = table_->Read();
    const PooledFeature feature = {source.get(), random.bags(),
                                   activations.data(), kDim};
    ThreadExecutor executor(2);
    ASSERT_TRUE(PooledLookup({&feature, 1}, &executor).ok());
  }
  const std::vector<float> values = Values();
  const IdBags bags = random.bags();
  for (int64_t bag = 0; bag < bags.num_bags; ++bag) {
    for (int64_t c = 0; c < kDim; ++c) {
      Expected sum;
      for (int64_t i = bags.begin_of(bag); i < bags.begin_of(bag + 1); ++i) {
        sum.Add(values[bags.ids[i] * kDim + c]);
      }
      ASSERT_TRUE(IsNear(activations[bag * kDim + c], sum)) << "bag " << bag;
    }
  }
}

}  // namespace
}  // namespace tfembed
