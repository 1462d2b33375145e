#ifndef TFEMBED_CORE_STEP_TASKS_H_
#define TFEMBED_CORE_STEP_TASKS_H_

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "cc/core/grouped_update.h"
#include "cc/core/support/executor.h"

namespace tfembed {

// Fewer gradient floats than these are summed faster than a second thread wakes
// up.
inline constexpr int64_t kSerialFloats = 1 << 15;

inline int64_t NumIds(absl::Span<const BagGradients> features) {
  int64_t n = 0;
  for (const BagGradients& feature : features) n += feature.bags.num_ids();
  return n;
}

// Into how many tasks to deal `num_ids` of the step's `step_ids`: some per
// thread in all, since they are not equally long.
inline int64_t TasksOfTable(int64_t num_ids, int64_t step_ids,
                            const Executor* executor) {
  constexpr int64_t kTasksPerThread = 4;
  constexpr int64_t kMinIds = 1024;
  const int64_t threads = NumThreads(executor);
  if (threads == 1 || step_ids == 0) return 1;
  const int64_t share = kTasksPerThread * threads * num_ids / step_ids;
  return std::clamp<int64_t>(share, 1, num_ids / kMinIds + 1);
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_TASKS_H_
