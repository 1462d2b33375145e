#include <memory>
#include <string>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/table/static_table.h"
#include "cc/core/testing/gradient_features.h"
#include "cc/core/testing/rule_oracle.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

constexpr int64_t kDim = 5;
constexpr float kLearningRate = 0.25f;
const char* const kAdam = "adam lazy_adam=0 epsilon=0.01";

// The state of a row of equal elements after a step.
ElementState After(const std::vector<double>& state, double gradient) {
  return StepElement(kAdam, kLearningRate, gradient, state[0],
                     {state[1], state[2]});
}

// One step of one gradient of 1 for each of `ids`.
void Step(RowSink* sink, const std::vector<int64_t>& ids, Executor* executor,
          float gradient = 1, NonFinite nonfinite = NonFinite::kSkip) {
  const auto rule = UpdateRule::Parse(kAdam).value();
  const std::vector<float> gradients(ids.size() * kDim, gradient);
  BagGradients feature;
  feature.bags.ids = ids.data();
  feature.bags.num_bags = ids.size();
  feature.gradients = gradients.data();
  feature.stride = kDim;
  TableUpdate update;
  update.sink = sink;
  update.rule = rule.get();
  update.learning_rate = kLearningRate;
  update.features = {feature};
  ASSERT_TRUE(GroupedUpdate({&update, 1}, nonfinite, executor).ok());
}

// A static table whose rows and slots are 1, -2 and 3.
class StaticRows {
 public:
  explicit StaticRows(int64_t num_rows)
      : values(num_rows * kDim, 1),
        momenta(num_rows * kDim, -2),
        velocities(num_rows * kDim, 3) {
    table_.values = values.data();
    table_.slots[0] = momenta.data();
    table_.slots[1] = velocities.data();
    table_.num_slots = 2;
    table_.num_rows = num_rows;
    table_.dim = kDim;
  }

  std::unique_ptr<RowSink> Write() { return WriteStaticTable(table_); }

  void Expect(int64_t row, const ElementState& state) const {
    const int64_t at = row * kDim + kDim - 1;
    ASSERT_TRUE(IsNear(values[at], state.value)) << "row " << row;
    ASSERT_TRUE(IsNear(momenta[at], state.slots[0])) << "row " << row;
    ASSERT_TRUE(IsNear(velocities[at], state.slots[1])) << "row " << row;
  }

  std::vector<float> values, momenta, velocities;

 private:
  StaticTable table_;
};

TEST(UpdateOtherRowsTest, MovesAllRowsOfAStaticTable) {
  constexpr int64_t kRows = 10000;  // Several slices.
  ThreadExecutor executor(3);
  for (Executor* threads :
       {static_cast<Executor*>(nullptr), static_cast<Executor*>(&executor)}) {
    StaticRows rows(kRows);
    Step(rows.Write().get(), {7, 0, 4096, 7, 9999}, threads);
    const ElementState other = After({1, -2, 3}, 0);
    const ElementState once = After({1, -2, 3}, 1);
    for (int64_t row = 0; row < kRows; ++row) {
      const bool is_once = row == 0 || row == 4096 || row == 9999;
      rows.Expect(row, row == 7  ? After({1, -2, 3}, 2)
                       : is_once ? once
                                 : other);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(UpdateOtherRowsTest, MovesAllRowsWhereNoneWasLookedUp) {
  StaticRows rows(3);
  Step(rows.Write().get(), {}, nullptr);
  for (int64_t row = 0; row < 3; ++row) {
    rows.Expect(row, After({1, -2, 3}, 0));
  }
}

TEST(UpdateOtherRowsTest, LeavesASkippedRowAlone) {
  StaticRows rows(2);
  Step(rows.Write().get(), {1}, nullptr, NAN);
  EXPECT_EQ(rows.values[kDim], 1);
  EXPECT_EQ(rows.momenta[kDim], -2);
  rows.Expect(0, After({1, -2, 3}, 0));
}

TEST(UpdateOtherRowsTest, MovesTheRowsThatAHashTableHas) {
  const auto table = MakeTestTable(kDim, 1);
  const auto rule = UpdateRule::Parse(kAdam).value();
  ASSERT_TRUE(
      table->SetSlots({"adam", rule->slot_names(), rule->slot_initial_values()})
          .ok());
  std::vector<int64_t> first, second;
  for (int64_t id = 0; id < 1000; ++id) first.push_back(id);
  for (int64_t id = 900; id < 1100; ++id) second.push_back(id);
  ThreadExecutor executor(3);
  Step(table->Write().get(), first, &executor);
  Step(table->Write().get(), second, &executor);
  EXPECT_EQ(table->size(), 1100);
  const ElementState one = After({1, 0, 0}, 1);
  const std::vector<double> state = {one.value.value, one.slots[0].value,
                                     one.slots[1].value};
  const std::vector<float> values = LookUp(*table, {0, 899, 900, 999, 1000});
  const ElementState expected[] = {After(state, 0), After(state, 0),
                                   After(state, 1), After(state, 1), one};
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(IsNear(values[i * kDim], expected[i].value)) << i;
  }
}

}  // namespace
}  // namespace tfembed
