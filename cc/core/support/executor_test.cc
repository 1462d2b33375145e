#include "cc/core/support/executor.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "cc/core/testing/thread_executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

using ::testing::Each;

// Takes work and runs it when the test says so.
class LateExecutor : public Executor {
 public:
  int num_threads() const override { return 4; }
  void Schedule(std::function<void()> work) override {
    works.push_back(std::move(work));
  }

  std::vector<std::function<void()>> works;
};

TEST(ParallelFor, CallsEachTaskOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadExecutor executor(threads);
    for (int64_t tasks : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> calls(tasks);
      ParallelFor(&executor, tasks, [&](int64_t task) { ++calls[task]; });
      for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ParallelFor, IsSerialAndInOrderWithoutAnExecutor) {
  std::vector<int64_t> order;
  ParallelFor(nullptr, 4, [&](int64_t task) { order.push_back(task); });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(ParallelFor, DoesNotWaitForThreadsThatDoNotStart) {
  LateExecutor executor;
  int64_t calls = 0;
  ParallelFor(&executor, 10, [&](int64_t) { ++calls; });
  EXPECT_EQ(calls, 10);
  ASSERT_EQ(executor.works.size(), 3u);
  for (auto& work : executor.works) work();  // Late: must find nothing to do.
  EXPECT_EQ(calls, 10);
}

TEST(ParallelFor, SchedulesNoMoreHelpersThanTasks) {
  LateExecutor executor;
  ParallelFor(&executor, 2, [](int64_t) {});
  EXPECT_EQ(executor.works.size(), 1u);
}

TEST(ParallelFor, SeesWhatTheOthersWrote) {
  ThreadExecutor executor(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> written(64);
    ParallelFor(&executor, 64, [&](int64_t task) { written[task] = 1; });
    ASSERT_THAT(written, Each(1));
  }
}

TEST(ParallelFor, NestsInAPoolsOwnThread) {
  ThreadExecutor executor(2);
  std::atomic<int> calls{0};
  ParallelFor(&executor, 8, [&](int64_t) {
    ParallelFor(&executor, 8, [&](int64_t) { ++calls; });
  });
  EXPECT_EQ(calls, 64);
}

}  // namespace
}  // namespace tfembed
