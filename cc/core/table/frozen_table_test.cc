// A table frozen for a reader, and the seed of its initial rows.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/testing/test_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::ElementsAre;
using ::testing::Ne;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

std::vector<int64_t> KeysOf(const EmbeddingTable::Snapshot& snapshot,
                            int64_t chunk_rows) {
  std::vector<int64_t> all;
  const absl::Status status = snapshot.Visit(
      chunk_rows,
      [&](absl::Span<const int64_t> keys, const float*) {
        all.insert(all.end(), keys.begin(), keys.end());
        return absl::OkStatus();
      },
      nullptr);
  EXPECT_TRUE(status.ok());
  return all;
}

std::unique_ptr<EmbeddingTable> UniformTable(uint64_t seed) {
  auto rows = InitialRows::Create("uniform", {0, 1}, seed, /*dim=*/4);
  EmbeddingTable::Options options;
  options.dim = 4;
  return *EmbeddingTable::Create(options, *std::move(rows));
}

TEST(Freeze, KnowsItsSizeAndVisitsEveryKeyOnce) {
  auto table = MakeTestTable(2);
  ASSERT_TRUE(
      table->Upsert({5, -1, 7}, RowsOf({1, 2, 3}, 2).data(), nullptr).ok());
  const auto snapshot = table->Freeze();
  EXPECT_EQ(snapshot->size(), 3);
  EXPECT_THAT(KeysOf(*snapshot, 2), UnorderedElementsAre(5, -1, 7));
}

TEST(Freeze, TellsTheSeed) {
  auto table = UniformTable(9);
  EXPECT_EQ(table->Freeze()->seed(), 9);
  table->SetSeed(4);
  EXPECT_EQ(table->Freeze()->seed(), 4);
}

TEST(Freeze, TellsTheSlots) {
  auto table = MakeTestTable(2);
  ASSERT_TRUE(table->SetSlots({"adam", {"m", "v"}, {0, 0}}).ok());
  EXPECT_THAT(table->Freeze()->slots().names, ElementsAre("m", "v"));
}

TEST(Freeze, RefusesChunksOfNoRows) {
  auto table = MakeTestTable(1);
  const auto visit = [](absl::Span<const int64_t>, const float*) {
    return absl::OkStatus();
  };
  EXPECT_EQ(table->Freeze()->Visit(0, visit, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Freeze, LetsReadersInAndKeepsWritersWaiting) {
  auto table = MakeTestTable(1);
  auto snapshot = table->Freeze();
  std::atomic<bool> written{false};
  std::thread writer([&] {
    const float row = 1;
    written = table->Upsert({3}, &row, nullptr).ok();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(written);
  EXPECT_THAT(Exists(*table, {3}), ElementsAre(0));
  EXPECT_THAT(KeysOf(*snapshot, 10), SizeIs(0));
  snapshot.reset();
  writer.join();
  EXPECT_TRUE(written);
  EXPECT_EQ(table->size(), 1);
}

TEST(Seed, IsThatOfTheInitialRows) { EXPECT_EQ(UniformTable(9)->seed(), 9); }

TEST(Seed, RedrawsMissingRowsAndLeavesOthersAlone) {
  auto table = UniformTable(1);
  ASSERT_TRUE(table->Upsert({7}, RowsOf({5}, 4).data(), nullptr).ok());
  const std::vector<float> before = LookUp(*table, {8});
  table->SetSeed(2);
  EXPECT_THAT(LookUp(*table, {8}), Ne(before));
  EXPECT_EQ(LookUp(*table, {8}), LookUp(*UniformTable(2), {8}));
  EXPECT_EQ(LookUp(*table, {7}), RowsOf({5}, 4));
}

}  // namespace
}  // namespace tfembed
