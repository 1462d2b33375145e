// Updates that fail, and gradients with a NaN or an infinity.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "cc/core/step/grouped_update.h"
#include "cc/core/testing/thread_executor.h"
#include "cc/core/testing/updated_table.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

class NonFiniteTest : public UpdateTest {};

TEST_P(NonFiniteTest, SkipsAndCountsRowsWithANonFiniteSum) {
  UpdatedTable table(is_static(), 17, 40, "adagrad"),
      good(is_static(), 17, 40, "sgd");
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

TEST_P(NonFiniteTest, RefusesANonFiniteSumBeforeAnyChange) {
  UpdatedTable good(is_static(), 8, 40, "sgd"), bad(is_static(), 8, 40, "sgd");
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

TEST_P(NonFiniteTest, AppliesANonFiniteSumWhereAllowed) {
  UpdatedTable table(is_static(), 8, 40, "sgd");
  RandomBagsOptions options;
  options.has_splits = false;
  table.features.Add(options, 1);
  table.features.gradients(0)[0] = std::nanf("");
  std::vector<int64_t> counts;
  ASSERT_TRUE(RunStep({&table}, &executor_, NonFinite::kAllow, &counts).ok());
  EXPECT_TRUE(std::isnan(table.Row(table.features.bags(0).ids()[0])[0]));
  EXPECT_EQ(counts[0], 0);
}

INSTANTIATE_TEST_SUITE_P(Targets, NonFiniteTest, UpdateTargets(), NameOfTarget);

TEST(GroupedUpdateErrorTest, AnIdOutOfRangeLeavesEveryTableAsItWas) {
  UpdatedTable good(true, 8, 40, "sgd"), bad(true, 8, 40, "sgd");
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

TEST(GroupedUpdateErrorTest, AFullPartLeavesEveryTableAsItWas) {
  UpdatedTable good(true, 8, 40, "sgd"), full(false, 8, 40, "sgd");
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
