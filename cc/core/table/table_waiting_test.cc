// Keys that wait for admission, as checkpoints bring them in.
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "cc/core/step/grouped_update.h"
#include "cc/core/testing/bounded_table.h"
#include "cc/core/testing/gradient_features.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

std::vector<int32_t> Times(size_t n, int32_t seen) {
  return std::vector<int32_t>(n, seen);
}

TEST(Waiting, KeysThatHaveARowDoNotWait) {
  auto table = Bounded(100, "least_recent", "count seen=3");
  ASSERT_TRUE(Upsert(table.get(), {1}).ok());
  ASSERT_TRUE(table->ImportWaiting({1, 2, 3}, Times(3, 2)).ok());
  EXPECT_EQ(table->num_waiting(), 2);
  const std::vector<int64_t> keys = {1, 2, 4};
  bool known[3];
  table->IsKnown(keys, known);
  EXPECT_TRUE(known[0] && known[1] && !known[2]);
}

TEST(Waiting, TheGreaterNumberStays) {
  auto table = Bounded(100, "least_recent", "count seen=9");
  ASSERT_TRUE(table->ImportWaiting({1, 1, 1}, {2, 5, 3}).ok());
  const auto frozen = table->Freeze();
  ASSERT_EQ(frozen->num_waiting(), 1);
  const auto visit = [](absl::Span<const int64_t> keys,
                        absl::Span<const int32_t> seen) {
    EXPECT_EQ(std::vector<int64_t>(keys.begin(), keys.end()),
              std::vector<int64_t>({1}));
    EXPECT_EQ(std::vector<int32_t>(seen.begin(), seen.end()),
              std::vector<int32_t>({5}));
    return absl::OkStatus();
  };
  EXPECT_TRUE(frozen->VisitWaiting(10, visit).ok());
}

TEST(Waiting, ANumberBelowOneIsRefusedBeforeAnyChange) {
  auto table = Bounded(100, "least_recent", "count seen=3");
  EXPECT_TRUE(absl::IsInvalidArgument(table->ImportWaiting({1, 2}, {1, 0})));
  EXPECT_EQ(table->num_waiting(), 0);
}

TEST(Waiting, ABoundHoldsBesideTraining) {
  constexpr int64_t kBound = 400, kKeys = 4000;
  auto table = Bounded(kBound, "least_recent", "count seen=3");
  const auto rule = UpdateRule::Parse("sgd").value();
  std::atomic<bool> stop{false};
  std::thread importer([&] {
    for (int64_t first = 0; !stop; first = (first + 500) % kKeys) {
      EXPECT_TRUE(table->ImportWaiting(From(first, 500), Times(500, 5)).ok());
    }
  });
  RandomBagsOptions bags;
  bags.num_bags = 60;
  bags.num_rows = kKeys;
  for (int step = 0; step < 300; ++step) {
    GradientFeatures features(kBoundedDim);
    features.Add(bags, 2 * step + 1);
    const auto sink = table->Write();
    TableUpdate update;
    update.sink = sink.get();
    update.rule = rule.get();
    update.features = features.features();
    const absl::Status status =
        GroupedUpdate({&update, 1}, NonFinite::kAllow, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_LE(table->size(), kBound);
  }
  stop = true;
  importer.join();
}

}  // namespace
}  // namespace tfembed
