#ifndef TFEMBED_CORE_STEP_STEP_HOLDS_H_
#define TFEMBED_CORE_STEP_STEP_HOLDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/step/grouped_update.h"
#include "cc/core/step/table_gradients.h"
#include "cc/core/support/executor.h"

namespace tfembed {

// A step's holds on its tables. In tables of bounded size only ids that train
// count: an id whose gradient is skipped must not evict another id's row.
// Borrows its constructor's arguments. Not thread-safe.
class StepHolds {
 public:
  using Gradients = std::vector<std::unique_ptr<TableGradients>>;

  StepHolds(absl::Span<TableUpdate> tables, const Gradients& gradients,
            bool skips_nonfinite)
      : tables_(tables),
        gradients_(gradients),
        skips_nonfinite_(skips_nonfinite) {}

  // Takes the holds and pins the ids that train. InvalidArgument: more of them
  // than a table may hold, or a table twice; nothing is changed.
  absl::Status Pin(Executor* executor);

  // The ids of a task's parts; for a bounded table, only those that train.
  // REQUIRES: Pin.
  absl::Span<const TableGradients::PartSize> Parts(int64_t table,
                                                   int64_t task) const;

  // The ids of a task that train. Reads the task's sums for it unless Pin has.
  // REQUIRES: Pin.
  struct TaskIds {
    std::vector<int64_t> ids;  // Distinct ones, part by part.
    std::vector<TableGradients::PartSize> parts;
  };
  TaskIds Trained(int64_t table, int64_t task) const;

  // Evicts rows. REQUIRES: Pin, and that all other memory was reserved.
  void MakeRoom();

 private:
  struct Hold {
    TableHold* hold;
    int64_t table;
  };
  TaskIds Read(int64_t table, int64_t task) const;

  // The ids of all tasks that train.
  std::vector<int64_t> ReadTrained(int64_t table, Executor* executor);

  const absl::Span<TableUpdate> tables_;
  const Gradients& gradients_;
  const bool skips_nonfinite_;
  std::vector<Hold> holds_;                          // In their order.
  std::map<int64_t, std::vector<TaskIds>> trained_;  // Table: by task.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_STEP_HOLDS_H_
