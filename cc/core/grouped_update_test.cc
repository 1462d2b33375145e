#include "cc/core/grouped_update.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/static_table.h"
#include "cc/core/testing/gradient_features.h"
#include "cc/core/testing/map_table.h"
#include "cc/core/testing/near.h"
#include "cc/core/testing/rule_oracle.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr float kLearningRate = 0.05f;
constexpr float kInitialSlot = 0.1f;

// A table of either kind under a rule, the features that update it, and its
// rows as they were.
class Table {
 public:
  Table(bool is_static, int64_t dim, int64_t num_rows, const std::string& rule)
      : dim(dim),
        rule_text(rule),
        features(dim),
        rule_(UpdateRule::Parse(rule).value()),
        num_slots_(rule_->slot_names().size()),
        map_(dim, rule_->slot_initial_values()),
        values_(RandomFloats(num_rows * dim, 11)) {
    if (!is_static) return;
    StaticTable table;
    table.name = "user";
    table.values = values_.data();
    table.num_rows = num_rows;
    table.dim = dim;
    table.num_slots = num_slots_;
    for (int s = 0; s < num_slots_; ++s) {
      slots_[s].assign(num_rows * dim, rule_->slot_initial_values()[s]);
      table.slots[s] = slots_[s].data();
    }
    static_ = WriteStaticTable(table);
  }

  TableUpdate Update() {
    TableUpdate update;
    update.sink = static_ != nullptr ? static_.get() : &map_;
    update.rule = rule_.get();
    update.learning_rate = kLearningRate;
    update.features = features.features();
    return update;
  }

  // The row's value (slot -1) or slot; initial ones where it is missing.
  std::vector<float> Row(int64_t id, int slot = -1) const {
    std::vector<float> row(dim);
    if (static_ != nullptr) {
      const auto& array = slot < 0 ? values_ : slots_[slot];
      row.assign(array.begin() + id * dim, array.begin() + (id + 1) * dim);
    } else if (const float* full = map_.Find(id)) {
      row.assign(full + dim * (1 + slot), full + dim * (2 + slot));
    } else if (slot < 0) {
      map_.FillMissing(id, row.data());
    } else {
      row.assign(dim, rule_->slot_initial_values()[slot]);
    }
    return row;
  }

  // Rows [0, n) of values and slots.
  std::vector<std::vector<float>> Rows(int64_t n) const {
    std::vector<std::vector<float>> rows;
    for (int64_t id = 0; id < n; ++id) {
      for (int slot = -1; slot < num_slots_; ++slot) {
        rows.push_back(Row(id, slot));
      }
    }
    return rows;
  }

  MapTable& map() { return map_; }

  const int64_t dim;
  const std::string rule_text;
  GradientFeatures features;

 private:
  std::unique_ptr<UpdateRule> rule_;
  const int num_slots_;
  MapTable map_;
  std::vector<float> values_;
  std::vector<float> slots_[kMaxSlots];
  std::unique_ptr<RowSink> static_;
};

absl::Status RunStep(std::vector<Table*> tables, Executor* executor,
                     NonFinite nonfinite = NonFinite::kSkip,
                     std::vector<int64_t>* nonfinite_rows = nullptr) {
  std::vector<TableUpdate> updates;
  for (Table* table : tables) updates.push_back(table->Update());
  const absl::Status status =
      GroupedUpdate(absl::MakeSpan(updates), nonfinite, executor);
  for (const TableUpdate& update : updates) {
    if (nonfinite_rows) nonfinite_rows->push_back(update.nonfinite_rows);
  }
  return status;
}

// What SGD or Adagrad must have made of the rows [0, n), given the rows before.
void ExpectUpdated(const Table& table, int64_t n,
                   const std::vector<std::vector<float>>& before) {
  const bool is_adagrad = table.rule_text == "adagrad";
  const auto sums = table.features.Sums();
  const int64_t arrays = is_adagrad ? 2 : 1;
  for (int64_t id = 0; id < n; ++id) {
    const std::vector<float> value = table.Row(id);
    const std::vector<float>& old_value = before[id * arrays];
    const auto found = sums.find(id);
    for (int64_t c = 0; c < table.dim; ++c) {
      if (found == sums.end()) {
        ASSERT_EQ(value[c], old_value[c]) << "id " << id;
        continue;
      }
      const Expected& g = found->second[c];
      double root = 1;
      if (is_adagrad) {
        const double old_slot = before[id * arrays + 1][c];
        const double slot = old_slot + g.value * g.value;
        root = std::sqrt(slot);
        ASSERT_TRUE(
            IsNear(table.Row(id, 0)[c],
                   {slot, old_slot + 2 * std::fabs(g.value) * g.terms}));
      }
      const double step = kLearningRate * g.value / root;
      ASSERT_TRUE(IsNear(
          value[c], {old_value[c] - step,
                     std::fabs(old_value[c]) + kLearningRate * g.terms / root}))
          << "id " << id << " column " << c;
    }
  }
}

class GroupedUpdateTest
    : public testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  void SetUp() override {
    const Kernels* kernels = FindKernels(std::get<0>(GetParam()));
    if (kernels == nullptr) GTEST_SKIP() << "This processor cannot run them.";
    SetActiveKernels(*kernels);
  }
  void TearDown() override { SetActiveKernels(before_); }

  bool is_static() const { return std::get<1>(GetParam()); }

  const Kernels& before_ = ActiveKernels();
  ThreadExecutor executor_{2};
};

TEST_P(GroupedUpdateTest, AppliesTheSumOfEveryIdOnce) {
  uint32_t seed = 0;
  for (const int64_t dim : {1, 3, 8, 16, 17, 64, 100, 128}) {
    for (const Combiner combiner :
         {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
      for (const bool has_weights : {false, true}) {
        Table sgd(is_static(), dim, 40, "sgd");
        Table adagrad(is_static(), dim, 40, "adagrad");
        for (Table* table : {&sgd, &adagrad}) {
          RandomBagsOptions options;
          options.combiner = combiner;
          options.has_weights = has_weights;
          options.num_rows = 35;
          table->features.Add(options, seed += 2);
          options.has_splits = false;
          table->features.Add(options, seed += 2);
        }
        const auto before_sgd = sgd.Rows(40);
        const auto before_adagrad = adagrad.Rows(40);
        ASSERT_TRUE(RunStep({&sgd, &adagrad}, &executor_).ok());
        ExpectUpdated(sgd, 40, before_sgd);
        ExpectUpdated(adagrad, 40, before_adagrad);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(GroupedUpdateTest, GivesTheSameBitsWhateverTheThreads) {
  for (const bool has_weights : {false, true}) {
    for (const char* rule : {"adagrad", "adam accumulate=0"}) {
      std::vector<std::vector<float>> serial;
      for (const int threads : {1, 2, 3}) {
        Table large(is_static(), 16, 3000, rule);
        Table small(is_static(), 24, 50, rule);
        RandomBagsOptions options;
        options.has_weights = has_weights;
        options.num_rows = 50;
        small.features.Add(options, 5);
        options.num_bags = 4000;
        options.num_rows = 3000;
        large.features.Add(options, 1);
        large.features.Add(options, 3);
        const auto before = large.Rows(3000);
        ThreadExecutor executor(threads);
        ASSERT_TRUE(RunStep({&large, &small}, &executor).ok());
        auto rows = large.Rows(3000);
        for (const auto& row : small.Rows(50)) rows.push_back(row);
        if (threads == 1) serial = rows;
        EXPECT_EQ(rows, serial) << threads << " threads";
        if (large.rule_text == "adagrad") ExpectUpdated(large, 3000, before);
      }
    }
  }
}

TEST_P(GroupedUpdateTest, SumsAnIdThatComesThousandsOfTimes) {
  Table table(is_static(), 16, 3, "adagrad");
  RandomBagsOptions options;
  options.num_bags = 3000;
  options.num_rows = 3;
  table.features.Add(options, 1);
  const auto before = table.Rows(3);
  ASSERT_TRUE(RunStep({&table}, &executor_).ok());
  ExpectUpdated(table, 3, before);
}

TEST_P(GroupedUpdateTest, AppliesEveryOccurrenceInOrderWithoutAccumulation) {
  for (const char* rule : {"sgd accumulate=0", "adagrad accumulate=0"}) {
    Table table(is_static(), 5, 20, rule);
    RandomBagsOptions options;
    options.num_rows = 20;
    options.num_bags = 100;
    table.features.Add(options, 1);
    table.features.Add(options, 3);
    const auto before = table.Rows(20);
    ASSERT_TRUE(RunStep({&table}, &executor_).ok());
    const bool is_adagrad = before.size() == 40;
    for (const auto& [id, gradients] : table.features.Occurrences()) {
      for (int64_t c = 0; c < 5; ++c) {
        double value = before[is_adagrad ? 2 * id : id][c];
        double terms = std::fabs(value);
        std::vector<double> slots;
        if (is_adagrad) slots = {kInitialSlot};
        for (const auto& gradient : gradients) {
          const ElementState state =
              StepElement(rule, kLearningRate, gradient[c], value, slots);
          value = state.value.value;
          terms += state.value.terms;
          if (is_adagrad) slots = {state.slots[0].value};
        }
        ASSERT_TRUE(IsNear(table.Row(id)[c], {value, terms}));
      }
    }
  }
}

TEST_P(GroupedUpdateTest, TouchesIdsOfBagsWhoseDivisorIsZero) {
  Table table(is_static(), 4, 10, "adam weight_decay=0.5");
  RandomBagsOptions options;
  options.num_rows = 10;
  options.has_weights = true;
  options.combiner = Combiner::kMean;
  table.features.Add(options, 1);
  for (float& weight : table.features.bags(0).weights()) weight = 0;
  const auto before = table.Rows(10);
  ASSERT_TRUE(RunStep({&table}, &executor_).ok());
  for (const auto& [id, sum] : table.features.Sums()) {
    EXPECT_FLOAT_EQ(table.Row(id)[0], 0.5f * before[3 * id][0]);
  }
}

TEST_P(GroupedUpdateTest, SkipsAndCountsRowsWithANonFiniteSum) {
  Table table(is_static(), 17, 40, "adagrad"), good(is_static(), 17, 40, "sgd");
  RandomBagsOptions options;
  options.num_bags = 20;
  table.features.Add(options, 1);
  good.features.Add(options, 3);
  table.features.gradients(0)[16] = std::nanf("");
  table.features.gradients(0)[3 * 18] = HUGE_VALF;
  int64_t bad = 0, all = 0;
  const auto before = table.Rows(40);
  std::vector<int64_t> counts;
  ASSERT_TRUE(
      RunStep({&table, &good}, &executor_, NonFinite::kSkip, &counts).ok());
  for (const auto& [id, sum] : table.features.Sums()) {
    bool is_finite = true;
    for (const Expected& g : sum) is_finite &= std::isfinite(g.value);
    ++all;
    bad += !is_finite;
    EXPECT_EQ(table.Row(id) == before[2 * id], !is_finite) << "id " << id;
  }
  EXPECT_GT(bad, 0);
  EXPECT_LT(bad, all);
  EXPECT_EQ(counts, std::vector<int64_t>({bad, 0}));
  if (!is_static()) {
    EXPECT_EQ(table.map().size(), all - bad);
  }
}

TEST_P(GroupedUpdateTest, RefusesANonFiniteSumBeforeAnyChange) {
  Table good(is_static(), 8, 40, "sgd"), bad(is_static(), 8, 40, "sgd");
  RandomBagsOptions options;
  good.features.Add(options, 1);
  options.has_splits = false;
  bad.features.Add(options, 3);
  bad.features.bags(0).ids()[9] = 39;
  bad.features.gradients(0)[9 * 9 + 7] = -HUGE_VALF;
  const auto before = good.Rows(40), before_bad = bad.Rows(40);
  const absl::Status status =
      RunStep({&good, &bad}, &executor_, NonFinite::kRefuse);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "of id 39 of table 1 "))
      << status;
  EXPECT_EQ(good.Rows(40), before);
  EXPECT_EQ(bad.Rows(40), before_bad);
  bad.features.gradients(0)[9 * 9 + 7] = 1;
  EXPECT_TRUE(RunStep({&good, &bad}, &executor_, NonFinite::kRefuse).ok());
  ExpectUpdated(good, 40, before);
  ExpectUpdated(bad, 40, before_bad);
}

TEST_P(GroupedUpdateTest, AppliesANonFiniteSumWhereAllowed) {
  Table table(is_static(), 8, 40, "sgd");
  RandomBagsOptions options;
  options.has_splits = false;
  table.features.Add(options, 1);
  table.features.gradients(0)[0] = std::nanf("");
  std::vector<int64_t> counts;
  ASSERT_TRUE(RunStep({&table}, &executor_, NonFinite::kAllow, &counts).ok());
  EXPECT_TRUE(std::isnan(table.Row(table.features.bags(0).ids()[0])[0]));
  EXPECT_EQ(counts[0], 0);
}

TEST_P(GroupedUpdateTest, TakesTablesWithoutFeaturesOrIds) {
  Table none(is_static(), 8, 40, "sgd"), empty(is_static(), 8, 40, "sgd");
  RandomBagsOptions options;
  options.max_ids = 0;
  empty.features.Add(options, 1);
  const auto before = empty.Rows(40);
  EXPECT_TRUE(RunStep({}, &executor_).ok());
  EXPECT_TRUE(RunStep({&none, &empty}, &executor_).ok());
  EXPECT_EQ(empty.Rows(40), before);
}

INSTANTIATE_TEST_SUITE_P(Targets, GroupedUpdateTest,
                         testing::Combine(testing::Values("baseline", "avx2",
                                                          "avx512"),
                                          testing::Bool()),
                         [](const auto& target) {
                           return std::string(std::get<0>(target.param)) +
                                  (std::get<1>(target.param) ? "Static"
                                                             : "Map");
                         });

TEST(GroupedUpdateErrorTest, AnIdOutOfRangeLeavesEveryTableAsItWas) {
  Table good(true, 8, 40, "sgd"), bad(true, 8, 40, "sgd");
  RandomBagsOptions options;
  good.features.Add(options, 1);
  bad.features.Add(options, 3);
  bad.features.bags(0).ids().back() = 40;
  const auto before = good.Rows(40), before_bad = bad.Rows(40);
  ThreadExecutor executor(2);
  const absl::Status status = RunStep({&good, &bad}, &executor);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "Id 40 is not in table"));
  EXPECT_EQ(good.Rows(40), before);
  EXPECT_EQ(bad.Rows(40), before_bad);
}

TEST(GroupedUpdateAdmissionTest, RefusedIdsTrainNothing) {
  for (const char* rule : {"sgd", "sgd accumulate=0"}) {
    Table plain(false, 8, 40, rule), picky(false, 8, 40, rule);
    RandomBagsOptions options;
    plain.features.Add(options, 3);
    picky.features.Add(options, 3);
    picky.map().refused_ids = {0, 3, 4, 39};
    const auto before = picky.Rows(40);
    ThreadExecutor executor(2);
    ASSERT_TRUE(RunStep({&plain, &picky}, &executor).ok());
    for (int64_t id = 0; id < 40; ++id) {
      const bool refused = picky.map().refused_ids.count(id) > 0;
      EXPECT_EQ(picky.Row(id), refused ? before[id] : plain.Row(id)) << id;
      if (refused) EXPECT_EQ(picky.map().Find(id), nullptr);
    }
  }
}

TEST(GroupedUpdateErrorTest, AFullPartLeavesEveryTableAsItWas) {
  Table good(true, 8, 40, "sgd"), full(false, 8, 40, "sgd");
  RandomBagsOptions options;
  good.features.Add(options, 1);
  full.features.Add(options, 3);
  full.map().max_new_ids[MapTable::kParts - 1] = 0;
  const auto before = good.Rows(40);
  ThreadExecutor executor(2);
  const absl::Status status = RunStep({&good, &full}, &executor);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(good.Rows(40), before);
  EXPECT_EQ(full.map().size(), 0);
}

}  // namespace
}  // namespace tfembed
