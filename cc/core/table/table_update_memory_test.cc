// A training step for whose new rows the system has no memory.
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/testing/address_limit.h"
#include "cc/core/testing/gradient_features.h"
#include "cc/core/testing/test_table.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

#if TFEMBED_CAN_LIMIT_ADDRESSES

// Each of two tables gets some 5,300 new rows of 8 KB: two slabs of 32 MB, of
// which those of one of its 32 parts need one.
constexpr int64_t kDim = 2048, kRows = 16000;
constexpr int64_t kRoom = int64_t{90} << 20;

class UpdateMemoryTest : public testing::TestWithParam<const char*> {
 protected:
  UpdateMemoryTest() {
    RandomBagsOptions options;
    options.num_bags = 64;
    options.max_ids = 200;
    options.num_rows = kRows;
    features_.Add(options, 1);
    for (auto& table : tables_) {
      EmbeddingTable::Options options;
      options.dim = kDim;
      options.admission = GetParam();
      auto made = EmbeddingTable::Create(
          options, *InitialRows::Create("constant", {0.5f}, /*seed=*/1, kDim));
      EXPECT_TRUE(made.ok()) << made.status();
      table = *std::move(made);
    }
  }

  absl::Status Step() {
    std::vector<std::unique_ptr<RowSink>> sinks;
    std::vector<TableUpdate> updates;
    for (auto& table : tables_) {
      sinks.push_back(table->Write());
      updates.emplace_back();
      updates.back().sink = sinks.back().get();
      updates.back().rule = rule_.get();
      updates.back().learning_rate = 0.1f;
      updates.back().features = features_.features();
    }
    return GroupedUpdate(absl::MakeSpan(updates), NonFinite::kSkip, &executor_);
  }

  int64_t NumDistinctIds() {
    const std::vector<int64_t>& ids = features_.bags(0).ids();
    return std::set<int64_t>(ids.begin(), ids.end()).size();
  }

  const std::unique_ptr<UpdateRule> rule_ = UpdateRule::Parse("sgd").value();
  std::unique_ptr<EmbeddingTable> tables_[2];
  GradientFeatures features_{kDim};
  ThreadExecutor executor_{2};
};

TEST_P(UpdateMemoryTest, AStepWithoutRoomForAllItsRowsChangesNothing) {
  {
    const AddressLimit limit(kRoom);
    const absl::Status status = Step();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  }
  for (const auto& table : tables_) {
    EXPECT_EQ(table->size(), 0);
    EXPECT_EQ(table->use().admitted, 0);
    EXPECT_EQ(table->use().refused, 0);
  }
  const absl::Status status = Step();
  ASSERT_TRUE(status.ok()) << status;
  for (const auto& table : tables_) {
    EXPECT_EQ(table->size(), NumDistinctIds());
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, UpdateMemoryTest,
                         testing::Values("", "count seen=1"),
                         [](const auto& admission) {
                           return std::string(admission.param).empty()
                                      ? "ThatTakeAllKeys"
                                      : "ThatAdmitKeys";
                         });

#endif

}  // namespace
}  // namespace tfembed
