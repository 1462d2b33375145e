#include "cc/core/grouped_update.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cc/core/first_error.h"
#include "cc/core/nonfinite_sums.h"
#include "cc/core/step_holds.h"
#include "cc/core/step_tasks.h"
#include "cc/core/table_gradients.h"
#include "cc/core/task_updater.h"
#include "cc/core/update_other_rows.h"

namespace tfembed {
namespace {

// One call of GroupedUpdate.
class UpdateStep {
 public:
  UpdateStep(absl::Span<TableUpdate> tables, NonFinite nonfinite,
             Executor* executor)
      : tables_(tables), nonfinite_(nonfinite), given_executor_(executor) {
    for (TableUpdate& table : tables_) {
      table.nonfinite_rows = 0;
      num_ids_ += NumIds(table.features);
      floats_ += NumIds(table.features) * table.sink->dim();
    }
    executor_ = floats_ < kSerialFloats ? nullptr : executor;
  }

  absl::Status Run() {
    absl::Status status = Create();
    if (status.ok()) status = Collect();
    if (!status.ok()) return status;
    for (auto& gradients : gradients_) gradients->Deal();
    const std::vector<StepTask> all = Tasks(false);
    const std::vector<StepTask> kept = Tasks(true);
    For(kept, [&](const StepTask& task) {
      gradients_[task.table]->Sort(task.part);
      return absl::OkStatus();
    }).IgnoreError();
    if (nonfinite_ == NonFinite::kRefuse) status = Refuse(all);
    if (status.ok()) status = holds_.Pin(executor_);
    if (status.ok()) status = Reserve(kept);
    if (!status.ok()) return status;
    holds_.MakeRoom();
    Update(all);
    return absl::OkStatus();
  }

 private:
  // A task of one table's gradients, or one of its ranges.
  struct StepTask {
    int64_t table;
    int64_t part;
  };

  bool KeepsSorted(int64_t table) const {
    return nonfinite_ == NonFinite::kRefuse || !IsDirect(*tables_[table].sink);
  }

  template <class Body>
  absl::Status For(const std::vector<StepTask>& tasks, const Body& body) {
    FirstError error;
    ParallelFor(executor_, tasks.size(),
                [&](int64_t i) { error.Update(i, body(tasks[i])); });
    return error.status();
  }

  absl::Status Create() {
    std::vector<IdRange> ids(tables_.size());
    ParallelFor(executor_, tables_.size(), [&](int64_t t) {
      if (!IsDirect(*tables_[t].sink)) ids[t] = RangeOfIds(tables_[t].features);
    });
    for (size_t t = 0; t < tables_.size(); ++t) {
      const TableUpdate& table = tables_[t];
      TableGradients::Options options;
      options.features = table.features;
      options.dim = table.sink->dim();
      options.sink = table.sink;
      options.ids = ids[t];
      options.accumulate = table.rule->accumulate();
      options.max_tasks =
          TasksOfTable(NumIds(table.features), num_ids_, executor_);
      options.keeps_sorted = KeepsSorted(t);
      auto gradients = TableGradients::Create(options);
      if (!gradients.ok()) return gradients.status();
      gradients_.push_back(*std::move(gradients));
    }
    return absl::OkStatus();
  }

  absl::Status Collect() {
    std::vector<StepTask> ranges;
    for (size_t t = 0; t < gradients_.size(); ++t) {
      for (int64_t r = 0; r < gradients_[t]->num_ranges(); ++r) {
        ranges.push_back({static_cast<int64_t>(t), r});
      }
    }
    return For(ranges, [&](const StepTask& range) {
      return gradients_[range.table]->Collect(range.part);
    });
  }

  std::vector<StepTask> Tasks(bool only_kept) const {
    std::vector<StepTask> tasks;
    for (size_t t = 0; t < gradients_.size(); ++t) {
      if (only_kept && !KeepsSorted(t)) continue;
      for (int64_t i = 0; i < gradients_[t]->num_tasks(); ++i) {
        tasks.push_back({static_cast<int64_t>(t), i});
      }
    }
    return tasks;
  }

  absl::Status Refuse(const std::vector<StepTask>& tasks) {
    return For(tasks, [&](const StepTask& task) {
      return RefuseNonFinite(tables_[task.table].name,
                             *tables_[task.table].sink,
                             gradients_[task.table]->Read(task.part).get());
    });
  }

  // Makes all the room before anything is changed.
  absl::Status Reserve(const std::vector<StepTask>& tasks) {
    const absl::Status status = For(tasks, [&](const StepTask& task) {
      return ReserveFor(task, holds_.Parts(task.table, task.part), nullptr);
    });
    if (!absl::IsResourceExhausted(status)) return status;
    // Only few of the ids may be new. Reading them is as much work as the step.
    For(tasks, [&](const StepTask& task) {
      RowSink* sink = tables_[task.table].sink;
      for (const auto& part : holds_.Parts(task.table, task.part)) {
        sink->Lock(part.part);
        sink->Unlock(part.part);  // Gives back what was kept for it.
      }
      return absl::OkStatus();
    }).IgnoreError();
    return For(tasks, [&](const StepTask& task) {
      if (IsDirect(*tables_[task.table].sink)) return absl::OkStatus();
      const StepHolds::TaskIds read = holds_.Trained(task.table, task.part);
      return ReserveFor(task, read.parts, read.ids.data());
    });
  }

  // `ids`: those of the parts, or null.
  absl::Status ReserveFor(const StepTask& task,
                          absl::Span<const TableGradients::PartSize> parts,
                          const int64_t* ids) {
    RowSink* sink = tables_[task.table].sink;
    if (IsDirect(*sink)) return absl::OkStatus();
    for (const auto& part : parts) {
      const absl::Status status = sink->Reserve(part.part, ids, part.ids);
      if (!status.ok()) return status;
      if (ids != nullptr) ids += part.ids;
    }
    return absl::OkStatus();
  }

  // Cannot fail.
  void Update(const std::vector<StepTask>& tasks) {
    std::vector<int64_t> nonfinite_rows(tasks.size(), 0);
    std::vector<std::vector<int64_t>> touched(tasks.size());
    ParallelFor(executor_, tasks.size(), [&](int64_t i) {
      const StepTask& task = tasks[i];
      TaskUpdater updater(tables_[task.table], nonfinite_);
      updater.Run(gradients_[task.table]->Read(task.part).get());
      nonfinite_rows[i] = updater.nonfinite_rows();
      touched[i] = updater.touched();
    });
    for (size_t i = 0; i < tasks.size(); ++i) {
      tables_[tasks[i].table].nonfinite_rows += nonfinite_rows[i];
    }
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (!tables_[t].rule->moves_all_rows()) continue;
      std::vector<int64_t> ids;
      for (size_t i = 0; i < tasks.size(); ++i) {
        if (tasks[i].table != static_cast<int64_t>(t)) continue;
        ids.insert(ids.end(), touched[i].begin(), touched[i].end());
      }
      UpdateOtherRows(tables_[t], std::move(ids), given_executor_);
    }
  }

  const absl::Span<TableUpdate> tables_;
  const NonFinite nonfinite_;
  Executor* const given_executor_;
  Executor* executor_ = nullptr;  // Null for a small step.
  int64_t num_ids_ = 0;
  int64_t floats_ = 0;
  std::vector<std::unique_ptr<TableGradients>> gradients_;
  StepHolds holds_{tables_, gradients_, nonfinite_ == NonFinite::kSkip};
};

}  // namespace

absl::Status GroupedUpdate(absl::Span<TableUpdate> tables, NonFinite nonfinite,
                           Executor* executor) {
  return UpdateStep(tables, nonfinite, executor).Run();
}

}  // namespace tfembed
