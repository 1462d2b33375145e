#include "cc/core/step/grouped_update.h"

#include <cmath>
#include <string>
#include <vector>

#include "cc/core/testing/rule_oracle.h"
#include "cc/core/testing/thread_executor.h"
#include "cc/core/testing/updated_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr float kInitialSlot = 0.1f;

class GroupedUpdateTest : public UpdateTest {};

TEST_P(GroupedUpdateTest, AppliesTheSumOfEveryIdOnce) {
  uint32_t seed = 0;
  for (const int64_t dim : {1, 3, 8, 16, 17, 64, 100, 128}) {
    for (const Combiner combiner :
         {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
      for (const bool has_weights : {false, true}) {
        UpdatedTable sgd(is_static(), dim, 40, "sgd");
        UpdatedTable adagrad(is_static(), dim, 40, "adagrad");
        for (UpdatedTable* table : {&sgd, &adagrad}) {
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
        UpdatedTable large(is_static(), 16, 3000, rule);
        UpdatedTable small(is_static(), 24, 50, rule);
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
  UpdatedTable table(is_static(), 16, 3, "adagrad");
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
    UpdatedTable table(is_static(), 5, 20, rule);
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
              StepElement(rule, kUpdateRate, gradient[c], value, slots);
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
  UpdatedTable table(is_static(), 4, 10, "adam weight_decay=0.5");
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

TEST_P(GroupedUpdateTest, TakesTablesWithoutFeaturesOrIds) {
  UpdatedTable none(is_static(), 8, 40, "sgd"),
      empty(is_static(), 8, 40, "sgd");
  RandomBagsOptions options;
  options.max_ids = 0;
  empty.features.Add(options, 1);
  const auto before = empty.Rows(40);
  EXPECT_TRUE(RunStep({}, &executor_).ok());
  EXPECT_TRUE(RunStep({&none, &empty}, &executor_).ok());
  EXPECT_EQ(empty.Rows(40), before);
}

INSTANTIATE_TEST_SUITE_P(Targets, GroupedUpdateTest, UpdateTargets(),
                         NameOfTarget);

}  // namespace
}  // namespace tfembed
