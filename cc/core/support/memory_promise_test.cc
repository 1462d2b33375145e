#include "cc/core/support/memory_promise.h"

#include <atomic>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kReserve = 64 * kMiB;

TEST(MemoryPromise, CountsWhatOthersWerePromised) {
  const ScopedAvailableMemory memory([] { return kReserve + 10 * kMiB; });
  MemoryPromise first, second;
  EXPECT_TRUE(first.Ask(6 * kMiB).ok());
  const absl::Status status = second.Ask(6 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("needs 6291456 bytes more of memory, of which 77594624 "
                        "are available"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("6291456 were promised"));
  EXPECT_EQ(second.bytes(), 0);
  EXPECT_TRUE(second.Ask(4 * kMiB).ok());
  EXPECT_FALSE(CheckMemory(1).ok());
  first.Return();
  EXPECT_TRUE(CheckMemory(6 * kMiB).ok());
  EXPECT_FALSE(CheckMemory(6 * kMiB + 1).ok());
}

TEST(MemoryPromise, EndsWithItsOwner) {
  const ScopedAvailableMemory memory([] { return kReserve + kMiB; });
  { EXPECT_TRUE(MemoryPromise().Ask(kMiB).ok()); }
  MemoryPromise promise;
  EXPECT_TRUE(promise.Ask(kMiB / 2).ok());
  EXPECT_TRUE(promise.Ask(kMiB / 2).ok());
  EXPECT_FALSE(promise.Ask(1).ok());
  promise.Return(kMiB / 4);
  EXPECT_EQ(promise.bytes(), kMiB - kMiB / 4);
  EXPECT_TRUE(CheckMemory(kMiB / 4).ok());
}

TEST(MemoryPromise, ReadsAgainWhereAReadingMayHaveBeenUsedUp) {
  std::atomic<int64_t> available{kReserve + 100 * kMiB};
  std::atomic<int> readings{0};
  const ScopedAvailableMemory memory([&] {
    ++readings;
    return available.load();
  });
  // Writes promised memory at once.
  const auto write = [&](int64_t bytes) {
    const absl::Status status = CheckMemory(bytes);
    if (status.ok()) available -= bytes;
    return status.ok();
  };
  int64_t written = 0;
  while (write(kMiB / 8)) written += kMiB / 8;
  EXPECT_EQ(written, 100 * kMiB);
  EXPECT_GT(readings, 1);
}

TEST(MemoryPromise, ReadsSeldomWhereMuchIsLeft) {
  std::atomic<int> readings{0};
  const ScopedAvailableMemory memory([&] {
    ++readings;
    return int64_t{1} << 50;
  });
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(CheckMemory(kMiB).ok());
  EXPECT_LE(readings, 20);
}

TEST(MemoryPromise, AsksForMoreThanNeededOfALastReading) {
  std::atomic<int> readings{0};
  const ScopedAvailableMemory memory([&] {
    ++readings;
    return kReserve + kMiB;
  });
  MemoryPromise promise;
  EXPECT_TRUE(promise.AskForMore(0));
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(promise.AskForMore(2 * kMiB));
  EXPECT_EQ(promise.bytes(), 0);
  EXPECT_LE(readings, 500);
  EXPECT_TRUE(promise.AskForMore(kMiB));
  EXPECT_FALSE(promise.AskForMore(1));
  EXPECT_FALSE(CheckMemory(1).ok());
}

TEST(MemoryPromise, TrustsNoReadingBeforeOneThatRefused) {
  int64_t available = kReserve + 1000 * kMiB;
  const ScopedAvailableMemory memory([&] { return available; });
  EXPECT_TRUE(CheckMemory(kMiB).ok());
  available = kReserve + 10 * kMiB;
  EXPECT_FALSE(MemoryPromise().AskForMore(600 * kMiB));
  EXPECT_FALSE(CheckMemory(400 * kMiB).ok());
  EXPECT_TRUE(CheckMemory(10 * kMiB).ok());
}

TEST(MemoryPromise, RefusesNoLittleWhereOthersTookTheReserve) {
  const ScopedAvailableMemory memory([] { return 45 * kMiB; });
  EXPECT_TRUE(CheckMemory(128).ok());
  EXPECT_TRUE(CheckMemory(100 << 10).ok());
  EXPECT_TRUE(MemoryPromise().AskForMore(128));
  EXPECT_FALSE(CheckMemory(kMiB).ok());
  EXPECT_FALSE(MemoryPromise().AskForMore(kMiB));
  // Many of a little are much.
  MemoryPromise promise;
  int64_t asked = 0;
  while (asked < kMiB && promise.Ask(1 << 10).ok()) asked += 1 << 10;
  EXPECT_EQ(asked, (127 << 10));
}

TEST(MemoryPromise, LeavesSomethingWhereALittleIsAskedForAgainAndAgain) {
  int64_t available = 45 * kMiB;
  const ScopedAvailableMemory memory([&] { return available; });
  while (available > 0 && CheckMemory(100 << 10).ok()) available -= 100 << 10;
  EXPECT_GE(available, 4 * kMiB);
  EXPECT_LT(available, 5 * kMiB);
}

TEST(CheckMemory, RefusesWhatNoMachineHas) {
  EXPECT_TRUE(CheckMemory(0).ok());
  EXPECT_TRUE(CheckMemory(1 << 20).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(CheckMemory(int64_t{1} << 60)));
}

}  // namespace
}  // namespace tfembed
