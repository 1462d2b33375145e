// Tables of float16 and bfloat16 rows under fused rules and grouped lookups.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/rows/value_type.h"
#include "cc/core/step/grouped_update.h"
#include "cc/core/step/pooled_lookup.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/gradient_features.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 13;
constexpr int64_t kRows = 700;
constexpr float kRate = 0.1f;

// A table with the rows [0, kRows / 2) and the slots of a rule.
class Table {
 public:
  Table(ValueType type, const std::string& rule, bool by_chance = false)
      : type_(type), rule_(UpdateRule::Parse(rule).value()) {
    EmbeddingTable::Options options;
    options.dim = kDim;
    options.type = type;
    options.stochastic_rounding = by_chance;
    table_ =
        EmbeddingTable::Create(
            options, *InitialRows::Create("constant", {0.25}, 1, kDim, type))
            .value();
    EXPECT_TRUE(table_
                    ->SetSlots({std::string(rule_->name()), rule_->slot_names(),
                                rule_->slot_initial_values()})
                    .ok());
  }

  // Writes `rows`, which `like` holds without loss.
  void Fill(ValueType like) {
    std::vector<float> rows = RandomFloats(kRows / 2 * kDim, 5);
    std::vector<char> packed(rows.size() * sizeof(float));
    like.FromFloats(rows.data(), packed.data(), rows.size());
    like.ToFloats(packed.data(), rows.data(), rows.size());
    type_.FromFloats(rows.data(), packed.data(), rows.size());
    std::vector<int64_t> half(ids_.begin(), ids_.begin() + kRows / 2);
    ASSERT_TRUE(table_->Upsert(half, packed.data(), nullptr).ok());
  }

  void Step(const GradientFeatures& features, Executor* executor) {
    const std::unique_ptr<RowSink> sink = table_->Write();
    TableUpdate update;
    update.sink = sink.get();
    update.rule = rule_.get();
    update.learning_rate = kRate;
    update.features = features.features();
    ASSERT_TRUE(GroupedUpdate({&update, 1}, NonFinite::kSkip, executor).ok());
  }

  // Value and slots of all rows, as floats.
  std::vector<float> Rows() const {
    const int64_t width = table_->trained_width();
    std::vector<float> rows(kRows * width);
    EXPECT_TRUE(table_->LookupTrained(ids_, width, rows.data(), nullptr).ok());
    return rows;
  }

  const UpdateRule& rule() const { return *rule_; }
  const EmbeddingTable& table() const { return *table_; }

 private:
  const ValueType type_;
  const std::unique_ptr<UpdateRule> rule_;
  std::unique_ptr<EmbeddingTable> table_;
  const std::vector<int64_t> ids_ = [] {
    std::vector<int64_t> ids(kRows);
    for (int64_t id = 0; id < kRows; ++id) ids[id] = id;
    return ids;
  }();
};

GradientFeatures Features() {
  GradientFeatures features(kDim);
  RandomBagsOptions options;
  options.num_bags = 900;
  options.num_rows = kRows;
  options.combiner = Combiner::kMean;
  features.Add(options, 1);
  options.has_weights = true;
  features.Add(options, 3);
  return features;
}

class HalfTraining : public testing::TestWithParam<ElementKind> {
 protected:
  ValueType type() const { return GetParam(); }

  float Rounded(float value) const {
    char packed[sizeof(float)];
    type().FromFloats(&value, packed, 1);
    type().ToFloats(packed, &value, 1);
    return value;
  }
};

TEST_P(HalfTraining, AStepIsThatOfFloatsAndThenRounded) {
  const GradientFeatures features = Features();
  ThreadExecutor executor(3);
  for (const char* rule : {"sgd", "adagrad", "adagrad_momentum", "adam", "ftrl",
                           "adagrad weight_decay=0.01 clip_weight_max=0.4"}) {
    Table floats(ValueType(), rule), halves(type(), rule);
    floats.Fill(type());
    halves.Fill(type());
    floats.Step(features, nullptr);
    halves.Step(features, &executor);
    std::vector<float> expected = floats.Rows();
    const int64_t width = expected.size() / kRows;
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t c = 0; c < kDim; ++c) {
        expected[i * width + c] = Rounded(expected[i * width + c]);
      }
    }
    EXPECT_EQ(halves.Rows(), expected) << rule;
  }
}

TEST_P(HalfTraining, OccurrencesThatAreNotSummedFindTheRowRounded) {
  const GradientFeatures features = Features();
  Table table(type(), "sgd accumulate=0");
  table.Fill(type());
  std::vector<float> expected = table.Rows();
  for (const auto& [id, gradients] : features.Occurrences()) {
    for (const auto& gradient : gradients) {
      for (int64_t c = 0; c < kDim; ++c) {
        float& value = expected[id * kDim + c];
        value = Rounded(value - kRate * static_cast<float>(gradient[c]));
      }
    }
  }
  table.Step(features, nullptr);
  const std::vector<float> rows = table.Rows();
  // A gradient whose float is not quite that double may round the other way.
  int64_t different = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_NEAR(rows[i], expected[i], 0.05);
    different += rows[i] != expected[i];
  }
  EXPECT_LT(different, static_cast<int64_t>(rows.size()) / 20);
}

TEST_P(HalfTraining, ChanceDoesNotDependOnThreads) {
  const GradientFeatures features = Features();
  ThreadExecutor executor(4);
  for (const char* rule : {"adagrad", "sgd accumulate=0"}) {
    Table one(type(), rule, /*by_chance=*/true);
    Table many(type(), rule, /*by_chance=*/true);
    Table nearest(type(), rule);
    for (int step = 0; step < 3; ++step) {
      one.Step(features, nullptr);
      many.Step(features, &executor);
      nearest.Step(features, nullptr);
    }
    EXPECT_EQ(one.Rows(), many.Rows());
    EXPECT_NE(one.Rows(), nearest.Rows());
  }
}

TEST_P(HalfTraining, LookupsCombineRowsAsFloats) {
  Table floats(ValueType(), "sgd"), halves(type(), "sgd");
  floats.Fill(type());
  halves.Fill(type());
  RandomBagsOptions options;
  options.num_bags = 500;
  options.num_rows = kRows;
  options.max_ids = 600;  // More than a block.
  options.combiner = Combiner::kMean;
  const RandomBags bags(options, 4);
  std::vector<float> pooled[2];
  for (int i = 0; i < 2; ++i) {
    const auto source = (i == 0 ? floats : halves).table().Read();
    pooled[i].resize(options.num_bags * kDim);
    PooledFeature feature;
    feature.source = source.get();
    feature.bags = bags.bags();
    feature.activations = pooled[i].data();
    feature.stride = kDim;
    ASSERT_TRUE(PooledLookup({&feature, 1}, nullptr).ok());
  }
  EXPECT_EQ(pooled[0], pooled[1]);
}

INSTANTIATE_TEST_SUITE_P(Halves, HalfTraining,
                         testing::Values(ElementKind::kFloat16,
                                         ElementKind::kBfloat16));

TEST(RowRounding, ByChanceIsForHalvesOnly) {
  EmbeddingTable::Options options;
  options.dim = 1;
  options.stochastic_rounding = true;
  const auto table = EmbeddingTable::Create(
      options, *InitialRows::Create("constant", {0}, 1, 1));
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RowRounding, DependsOnAllThatItIsGivenAndOnNothingElse) {
  const std::vector<float> values(200, 1 + 0x1p-9f);  // Half-way.
  const auto rounded = [&](uint64_t seed, uint64_t step, int64_t key,
                           uint64_t occurrence) {
    std::vector<uint16_t> row(values.size());
    RowRounding(ElementKind::kBfloat16, seed, step)
        .Round(values.data(), 200, key, occurrence, row.data());
    return row;
  };
  const auto row = rounded(1, 2, 3, 0);
  EXPECT_EQ(row, rounded(1, 2, 3, 0));
  std::map<std::vector<uint16_t>, int> rows;
  for (const auto& other :
       {row, rounded(2, 2, 3, 0), rounded(1, 3, 3, 0), rounded(1, 2, 4, 0),
        rounded(1, 2, 3, 1), rounded(1, 2, 3, 2)}) {
    ++rows[other];
  }
  EXPECT_EQ(rows.size(), 6u);
}

}  // namespace
}  // namespace tfembed
