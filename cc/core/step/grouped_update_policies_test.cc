// Updates of tables that admit keys, or are of bounded size.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/core/step/grouped_update.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "cc/core/testing/updated_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

// Wide enough that a hundred ids are worth two threads.
constexpr int64_t kDim = 512;

std::unique_ptr<EmbeddingTable> NewTable(const std::string& admission,
                                         const std::string& eviction,
                                         int64_t max_size) {
  EmbeddingTable::Options options;
  options.dim = kDim;
  options.admission = admission;
  options.eviction = eviction;
  options.max_size = max_size;
  auto initial_rows = InitialRows::Create("constant", {0}, 1, kDim);
  return EmbeddingTable::Create(options, *std::move(initial_rows)).value();
}

// A step of SGD in which ids[i] has the gradient -gradients[i], so that it is
// added.
struct Step {
  std::vector<int64_t> ids;
  std::vector<float> gradients;
  std::string rule = "sgd";
  int64_t nonfinite_rows = 0;

  absl::Status Run(EmbeddingTable* table, Executor* executor,
                   UpdatedTable* other = nullptr) {
    const auto parsed = UpdateRule::Parse(rule).value();
    for (float& gradient : gradients) gradient = -gradient;
    const std::vector<float> rows = RowsOf(gradients, kDim);
    const auto sink = table->Write();
    std::vector<TableUpdate> updates(1);
    updates[0].sink = sink.get();
    updates[0].rule = parsed.get();
    updates[0].learning_rate = 1;
    IdBags bags;
    bags.ids = ids.data();
    bags.num_bags = ids.size();
    updates[0].features = {{bags, rows.data(), kDim}};
    if (other != nullptr) updates.push_back(other->Update());
    const absl::Status status =
        GroupedUpdate(absl::MakeSpan(updates), NonFinite::kSkip, executor);
    nonfinite_rows = updates[0].nonfinite_rows;
    return status;
  }
};

Step Ones(int64_t begin, int64_t n) {
  Step step;
  for (int64_t i = 0; i < n; ++i) step.ids.push_back(begin + i);
  step.gradients.assign(n, 1);
  return step;
}

int64_t NumThere(const EmbeddingTable& table, int64_t begin, int64_t n) {
  int64_t there = 0;
  for (int exists : Exists(table, Ones(begin, n).ids)) there += exists;
  return there;
}

// With both ways of updating, and one and three threads.
class PolicyUpdates
    : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  absl::Status Run(Step step, EmbeddingTable* table,
                   UpdatedTable* other = nullptr) {
    step.rule = std::get<0>(GetParam());
    const absl::Status status = step.Run(table, &executor_, other);
    nonfinite_rows_ = step.nonfinite_rows;
    return status;
  }

  ThreadExecutor executor_{std::get<1>(GetParam())};
  int64_t nonfinite_rows_ = 0;
};

TEST_P(PolicyUpdates, IdsWhoseGradientIsSkippedEvictNothing) {
  auto table = NewTable("", "least_recent", 100);
  ASSERT_TRUE(Run(Ones(0, 100), table.get()).ok());
  Step bad = Ones(1000, 100);
  bad.gradients.assign(100, std::nanf(""));
  ASSERT_TRUE(Run(bad, table.get()).ok());
  EXPECT_EQ(nonfinite_rows_, 100);
  EXPECT_EQ(NumThere(*table, 0, 100), 100);
  EXPECT_EQ(NumThere(*table, 1000, 100), 0);
  EXPECT_EQ(table->use().evicted, 0);
  for (int64_t i = 0; i < 97; ++i) bad.gradients[i] = 1;
  ASSERT_TRUE(Run(bad, table.get()).ok());
  EXPECT_EQ(nonfinite_rows_, 3);
  EXPECT_EQ(NumThere(*table, 0, 100), 3);
  EXPECT_EQ(NumThere(*table, 1000, 97), 97);
}

TEST_P(PolicyUpdates, IdsWhoseGradientIsSkippedDoNotFillTheBound) {
  auto table = NewTable("", "least_recent", 100);
  Step step = Ones(0, 150);
  EXPECT_TRUE(absl::IsInvalidArgument(Run(step, table.get())));
  EXPECT_EQ(table->size(), 0);
  for (int64_t i = 0; i < 150; i += 3) step.gradients[i] = HUGE_VALF;
  EXPECT_TRUE(Run(step, table.get()).ok());
  EXPECT_EQ(table->size(), 100);
}

TEST_P(PolicyUpdates, NothingIsEvictedForAStepThatFails) {
  auto table = NewTable("", "least_recent", 100);
  ASSERT_TRUE(Run(Ones(0, 100), table.get()).ok());
  UpdatedTable full(false, 8, 40, "sgd");
  full.features.Add({}, 3);
  full.map().max_new_ids[0] = 0;
  EXPECT_TRUE(
      absl::IsResourceExhausted(Run(Ones(1000, 100), table.get(), &full)));
  EXPECT_EQ(NumThere(*table, 0, 100), 100);
  EXPECT_EQ(table->use().evicted, 0);
}

TEST_P(PolicyUpdates, StepsThatReplaceAllRowsDoNotMakeTheIndexGrow) {
  auto table = NewTable("", "least_recent", 3000);
  ASSERT_TRUE(Run(Ones(0, 3000), table.get()).ok());
  const int64_t index_bytes = table->stats().index_bytes;
  for (int64_t i = 1; i < 8; ++i) {
    ASSERT_TRUE(Run(Ones(3000 * i, 3000), table.get()).ok());
    ASSERT_EQ(NumThere(*table, 3000 * i, 3000), 3000);
  }
  EXPECT_EQ(table->size(), 3000);
  // Stripes differ by chance, and note the rows that are free.
  EXPECT_LT(table->stats().index_bytes, 1.4 * index_bytes);
}

// So often that it fills many blocks of sums.
Step ThousandTimes(int64_t id) {
  Step step = Ones(0, 1002);
  for (int64_t i = 1; i < 1001; ++i) step.ids[i] = id;
  return step;
}

TEST_P(PolicyUpdates, AnIdIsSeenOnceAStepHoweverOftenItComes) {
  auto table = NewTable("count seen=2", "", 0);
  ASSERT_TRUE(Run(ThousandTimes(7), table.get()).ok());
  EXPECT_EQ(table->size(), 0);
  EXPECT_EQ(table->use().refused, 3);
  ASSERT_TRUE(Run(ThousandTimes(7), table.get()).ok());
  EXPECT_EQ(LookUp(*table, {7}), RowsOf({1000}, kDim));
  EXPECT_EQ(table->size(), 3);
}

TEST_P(PolicyUpdates, ARowIsTouchedOnceAStepHoweverOftenItsIdComes) {
  auto table = NewTable("", "least_frequent", 0);
  ASSERT_TRUE(Run(ThousandTimes(7), table.get()).ok());
  ASSERT_TRUE(Run(Ones(0, 1), table.get()).ok());
  std::vector<int64_t> keys(3);
  std::vector<double> worth(3);
  const auto allocate = [&](int64_t n) {
    return EmbeddingTable::WorthBuffers{keys.data(), worth.data()};
  };
  ASSERT_EQ(table->size(), 3);
  ASSERT_TRUE(table->ExportWorth("", allocate, nullptr).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(worth[i], keys[i] == 0 ? 2 : 1);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, PolicyUpdates,
    ::testing::Combine(::testing::Values("sgd", "sgd accumulate=0"),
                       ::testing::Values(1, 3)));

TEST(GroupedUpdateAdmissionTest, RefusedIdsTrainNothing) {
  for (const char* rule : {"sgd", "sgd accumulate=0"}) {
    UpdatedTable plain(false, 8, 40, rule), picky(false, 8, 40, rule);
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
      if (!refused) continue;
      EXPECT_EQ(picky.map().Find(id), nullptr);
    }
  }
}

}  // namespace
}  // namespace tfembed
