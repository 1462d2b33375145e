#include "cc/core/support/executor.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
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

// A loop of two tasks, each of which waits for the other one to begin.
void MeetAnother(Executor* executor, const std::function<void()>& at_first) {
  std::atomic<int> begun{0};
  ParallelFor(executor, 2, [&](int64_t) {
    if (++begun == 1) at_first();
    while (begun < 2) std::this_thread::yield();
  });
}

TEST(ParallelFor, GivesTheNewestLoopToHelpersThatBeginLate) {
  LateExecutor executor;
  ParallelFor(&executor, 2, [](int64_t) {});
  ASSERT_EQ(executor.works.size(), 1u);  // It waits for the next loop, too.
  std::thread late;
  MeetAnother(&executor, [&] { late = std::thread(executor.works[0]); });
  late.join();
  EXPECT_EQ(executor.works.size(), 1u);
}

TEST(ParallelFor, KeepsHelpersForTheNextLoop) {
  class CountingExecutor : public Executor {
   public:
    CountingExecutor() : Executor(std::chrono::seconds(1)) {}
    int num_threads() const override { return threads_.num_threads(); }
    void Schedule(std::function<void()> work) override {
      ++scheduled;
      threads_.Schedule(std::move(work));
    }
    int scheduled = 0;

   private:
    ThreadExecutor threads_{2};
  };
  constexpr int kLoops = 1000;
  CountingExecutor executor;
  for (int i = 0; i < kLoops; ++i) MeetAnother(&executor, [] {});
  EXPECT_GE(executor.scheduled, 1);
  EXPECT_LT(executor.scheduled, kLoops);
}

TEST(ParallelFor, LetsHelpersGoWithTheExecutor) {
  std::vector<std::function<void()>> works;
  {
    LateExecutor executor;
    ParallelFor(&executor, 4, [](int64_t) {});
    works = std::move(executor.works);
  }
  ASSERT_EQ(works.size(), 3u);
  for (auto& work : works) work();  // Late: the executor is gone.
}

// On whichever thread: each throws in its first task, when both have begun.
TEST(ParallelFor, ThrowsWhatABodyThrewWhenAllThatBeganHaveReturned) {
  ThreadExecutor executor(2);
  std::atomic<int> begun{0};
  std::atomic<int> returned{0};
  const auto body = [&](int64_t task) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
    ++returned;
    throw std::out_of_range(std::to_string(task));
  };
  EXPECT_THROW(ParallelFor(&executor, 1000, body), std::out_of_range);
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(returned, 2);
  std::atomic<int> calls{0};  // The executor is as good as it was.
  ParallelFor(&executor, 1000, [&](int64_t) { ++calls; });
  EXPECT_EQ(calls, 1000);
}

TEST(ParallelFor, DoesWithoutHelpersThatCannotBeScheduled) {
  class FullExecutor : public LateExecutor {
   public:
    void Schedule(std::function<void()> work) override {
      if (works.size() >= room) throw std::bad_alloc();
      LateExecutor::Schedule(std::move(work));
    }
    size_t room = 1;
  };
  FullExecutor executor;
  int64_t calls = 0;
  ParallelFor(&executor, 10, [&](int64_t) { ++calls; });
  EXPECT_EQ(calls, 10);
  EXPECT_EQ(executor.works.size(), 1u);
  executor.room = 10;  // Helpers that were refused are asked for again.
  ParallelFor(&executor, 10, [&](int64_t) { ++calls; });
  EXPECT_EQ(calls, 20);
  EXPECT_EQ(executor.works.size(), 3u);
  for (auto& work : executor.works) work();
  EXPECT_EQ(calls, 20);
}

TEST(ParallelFor, ServesLoopsOfSeveralThreadsAtOnce) {
  ThreadExecutor executor(3);
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        ParallelFor(&executor, 5, [&](int64_t) { ++calls; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 4 * 200 * 5);
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
