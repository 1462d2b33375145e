// No memory where it is not needed: buffers that go, loops, notes. Looked at,
// too: the destructors of the core, and what threads of a pool call.
#include "cc/core/support/scratch_buffer.h"

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "cc/core/support/executor.h"
#include "cc/core/support/page_collapser.h"
#include "cc/core/testing/refused_memory.h"
#include "cc/core/testing/thread_executor.h"
#include "gtest/gtest.h"

namespace tfembed {
namespace {

// Refuses all memory while it lives.
class NoMemory {
 public:
  NoMemory() { refused_from = 0; }
  ~NoMemory() { refused_from = SIZE_MAX; }
};

TEST(NoMemory, ABufferThatCannotBeKeptIsFreed) {
  std::thread thread([] {  // One that keeps none so far.
    std::optional<ScratchBuffer<float>> buffer;
    buffer.emplace();
    buffer->Resize(1000);
    const NoMemory none;
    buffer.reset();
  });
  thread.join();
}

TEST(NoMemory, ALoopRunsOnTheCallersThread) {
  ThreadExecutor executor(3);
  std::atomic<int64_t> sum{0};
  const int64_t a = 1, b = 2, c = 3;
  {
    const NoMemory none;
    ParallelFor(&executor, 100,
                [&](int64_t task) { sum += task * (a + b - c + 1); });
  }
  EXPECT_EQ(sum, 4950);
}

TEST(NoMemory, PagesOfMemoryThatCannotBeNotedStayAsTheyAre) {
  PageCollapser collapser;
  std::vector<char> memory(size_t{16} << 20);
  {
    const NoMemory none;
    collapser.Note(&memory, memory.data(), memory.size());
  }
  collapser.Note(&memory, memory.data(), memory.size());
  collapser.Wait();
}

}  // namespace
}  // namespace tfembed
