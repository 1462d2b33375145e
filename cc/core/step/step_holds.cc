#include "cc/core/step/step_holds.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cc/core/step/table_gradients.h"

namespace tfembed {

absl::Status StepHolds::Pin(Executor* executor) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (TableHold* hold = tables_[t].sink->hold()) {
      holds_.push_back({hold, static_cast<int64_t>(t)});
    }
  }
  std::sort(holds_.begin(), holds_.end(), [](const Hold& a, const Hold& b) {
    return a.hold->order() < b.hold->order();
  });
  for (size_t i = 0; i < holds_.size(); ++i) {
    const auto& [hold, table] = holds_[i];
    if (i > 0 && holds_[i - 1].hold->order() == hold->order()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Of an update, ", tables_[holds_[i - 1].table].name, " and ",
          tables_[table].name, " are the same one; give it once."));
    }
    std::vector<int64_t> ids;
    if (hold->is_bounded()) ids = ReadTrained(table, executor);
    const absl::Status status = hold->Pin(ids);
    if (!status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat("In ", tables_[table].name, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

std::vector<int64_t> StepHolds::ReadTrained(int64_t table, Executor* executor) {
  std::vector<TaskIds>& tasks = trained_[table];
  tasks.resize(gradients_[table]->num_tasks());
  ParallelFor(executor, tasks.size(),
              [&](int64_t task) { tasks[task] = Read(table, task); });
  std::vector<int64_t> ids;
  for (const TaskIds& task : tasks) {
    ids.insert(ids.end(), task.ids.begin(), task.ids.end());
  }
  return ids;
}

StepHolds::TaskIds StepHolds::Read(int64_t table, int64_t task) const {
  TaskIds read;
  SumBlock block;
  const int64_t dim = tables_[table].sink->dim();
  SumReaderPlace place;
  SumReader* const reader = gradients_[table]->Read(task, &place);
  while (reader->Next(&block, {})) {
    if (skips_nonfinite_) DropNonFinite(dim, &block);
    for (int64_t i = 0; i < block.n; ++i) {
      // Without accumulation ids come several times in a row.
      if (!read.ids.empty() && read.ids.back() == block.ids[i]) continue;
      read.ids.push_back(block.ids[i]);
      if (read.parts.empty() || read.parts.back().part != block.part) {
        read.parts.push_back({block.part, 0});
      }
      ++read.parts.back().ids;
    }
  }
  return read;
}

StepHolds::TaskIds StepHolds::Trained(int64_t table, int64_t task) const {
  const auto found = trained_.find(table);
  return found == trained_.end() ? Read(table, task) : found->second[task];
}

absl::Span<const TableGradients::PartSize> StepHolds::Parts(
    int64_t table, int64_t task) const {
  const auto found = trained_.find(table);
  if (found != trained_.end()) return found->second[task].parts;
  return gradients_[table]->PartSizes(task);
}

void StepHolds::MakeRoom() {
  for (const Hold& hold : holds_) hold.hold->MakeRoom();
}

}  // namespace tfembed
