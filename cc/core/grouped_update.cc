#include "cc/core/grouped_update.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cc/core/first_error.h"
#include "cc/core/narrow_update.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/step_tasks.h"
#include "cc/core/table_gradients.h"

namespace tfembed {
namespace {

bool IsDirect(const RowSink& sink) { return sink.rank_limit() != 0; }

// Sums and their rows, which are on their way from memory.
struct PendingBlock {
  SumBlock sums;
  std::vector<MutableRow> rows;  // One per sum.
};

// A thread's buffers, kept from step to step.
struct UpdateScratch {
  PendingBlock blocks[2];
  std::vector<int64_t> distinct_ids;
  std::vector<MutableRow> distinct_rows;
};

// Updates the rows of one task: while the rows of a block arrive, the next one
// is summed.
class TaskUpdater {
 public:
  TaskUpdater(const TableUpdate& table, NonFinite nonfinite,
              absl::Span<const TableGradients::PartSize> parts,
              UpdateScratch* scratch)
      : table_(table),
        dim_(table.sink->dim()),
        nonfinite_(nonfinite),
        parts_(parts),
        scratch_(*scratch),
        narrow_(*table.rule, table.learning_rate, dim_, table.sink->rounding()),
        is_narrow_(!table.sink->rounding().type().is_float32()) {}

  ~TaskUpdater() { LeavePart(); }

  absl::Status Run(SumReader* reader) {
    PendingBlock* next = &scratch_.blocks[0];
    PendingBlock* last = &scratch_.blocks[1];
    const int num_slots = table_.rule->slot_names().size();
    last->sums.n = 0;
    while (reader->Next(&next->sums,
                        {last->rows.data(), last->sums.n, num_slots})) {
      const absl::Status status = EnterPart(next->sums.part, last);
      if (!status.ok()) return status;
      if (nonfinite_ == NonFinite::kSkip) DropNonFinite(&next->sums);
      Find(next);
      if (table_.sink->refuses()) DropRefused(next);
      Apply(last);
      std::swap(next, last);
    }
    Apply(last);
    return absl::OkStatus();
  }

  int64_t nonfinite_rows() const { return nonfinite_rows_; }

 private:
  // The room was made before; it is asked for again because other writers may
  // have come between. If it is gone, this part stays as it was, though others
  // have been updated: the one way in which a step may fail half-way.
  absl::Status EnterPart(int part, PendingBlock* last) {
    if (part == part_ || IsDirect(*table_.sink)) return absl::OkStatus();
    Apply(last);
    LeavePart();
    while (parts_[next_part_].part != part) ++next_part_;
    table_.sink->Lock(part);
    part_ = part;
    return table_.sink->Reserve(part, parts_[next_part_].ids);
  }

  void LeavePart() {
    if (part_ != kNoPart) table_.sink->Unlock(part_);
    part_ = kNoPart;
  }

  void DropNonFinite(SumBlock* block) {
    const Kernels& kernels = ActiveKernels();
    float* sums = block->sums.data();
    if (kernels.all_finite(sums, block->n * dim_)) return;
    int64_t kept = 0;
    for (int64_t i = 0; i < block->n; ++i) {
      if (!kernels.all_finite(sums + i * dim_, dim_)) continue;
      block->ids[kept] = block->ids[i];
      std::copy_n(sums + i * dim_, dim_, sums + kept * dim_);
      ++kept;
    }
    nonfinite_rows_ += block->n - kept;
    block->n = kept;
  }

  // The ids that the table does not take yet train nothing.
  void DropRefused(PendingBlock* block) {
    SumBlock& sums = block->sums;
    int64_t kept = 0;
    for (int64_t i = 0; i < sums.n; ++i) {
      if (block->rows[i].value == nullptr) continue;
      block->rows[kept] = block->rows[i];
      sums.ids[kept] = sums.ids[i];
      std::copy_n(sums.sums.data() + i * dim_, dim_,
                  sums.sums.data() + kept * dim_);
      ++kept;
    }
    sums.n = kept;
  }

  void Find(PendingBlock* block) {
    const int64_t n = block->sums.n;
    const std::vector<int64_t>& ids = block->sums.ids;
    std::vector<MutableRow>& rows = block->rows;
    rows.resize(std::max<size_t>(rows.size(), n));
    if (table_.rule->accumulate()) {
      table_.sink->FindOrInsert(block->sums.part, ids.data(), n, rows.data());
      return;
    }
    std::vector<int64_t>& distinct = scratch_.distinct_ids;
    distinct.assign(ids.begin(), ids.begin() + n);
    distinct.erase(std::unique(distinct.begin(), distinct.end()),
                   distinct.end());
    scratch_.distinct_rows.resize(distinct.size());
    table_.sink->FindOrInsert(block->sums.part, distinct.data(),
                              distinct.size(), scratch_.distinct_rows.data());
    int64_t row = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (ids[i] != distinct[row]) ++row;
      rows[i] = scratch_.distinct_rows[row];
    }
  }

  void Apply(PendingBlock* block) {
    SumBlock& sums = block->sums;
    if (sums.n == 0) return;
    if (is_narrow_) {
      narrow_.Apply(sums.ids.data(), block->rows.data(), sums.sums.data(),
                    sums.n);
    } else {
      table_.rule->Apply(block->rows.data(), sums.sums.data(), sums.n, dim_,
                         table_.learning_rate);
    }
    sums.n = 0;
  }

  static constexpr int kNoPart = -1;

  const TableUpdate& table_;
  const int64_t dim_;
  const NonFinite nonfinite_;
  const absl::Span<const TableGradients::PartSize> parts_;
  UpdateScratch& scratch_;
  NarrowUpdate narrow_;
  const bool is_narrow_;
  size_t next_part_ = 0;
  int part_ = kNoPart;
  int64_t nonfinite_rows_ = 0;
};

absl::Status RefuseNonFinite(SumReader* reader, int64_t table,
                             const RowSink& sink) {
  const Kernels& kernels = ActiveKernels();
  const int64_t dim = sink.dim();
  SumBlock block;
  while (reader->Next(&block, {})) {
    for (int64_t i = 0; i < block.n; ++i) {
      if (kernels.all_finite(block.sums.data() + i * dim, dim)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "The summed gradient of id ", sink.NameOf(block.ids[i]), " of table ",
          table,
          " of this update (counted from 0) has a NaN or an infinity; nothing "
          "was changed. Skip such rows with nonfinite=\"skip\", or find where "
          "they come from."));
    }
  }
  return absl::OkStatus();
}

// One call of GroupedUpdate.
class UpdateStep {
 public:
  UpdateStep(absl::Span<TableUpdate> tables, NonFinite nonfinite,
             Executor* executor)
      : tables_(tables), nonfinite_(nonfinite) {
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
    if (status.ok()) status = Pin();
    if (status.ok()) status = Reserve(kept);
    if (!status.ok()) return status;
    for (const auto& [bound, table] : bounds_) bound->MakeRoom();
    status = Update(all);
    return status;
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
    for (size_t t = 0; t < tables_.size(); ++t) {
      const TableUpdate& table = tables_[t];
      TableGradients::Options options;
      options.features = table.features;
      options.dim = table.sink->dim();
      options.sink = table.sink;
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
      return RefuseNonFinite(gradients_[task.table]->Read(task.part).get(),
                             task.table, *tables_[task.table].sink);
    });
  }

  // Keeps the rows of this step in the tables of bounded size.
  absl::Status Pin() {
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (BatchBound* bound = tables_[t].sink->bound()) {
        bounds_.emplace_back(bound, t);
      }
    }
    std::sort(bounds_.begin(), bounds_.end(), [](const auto& a, const auto& b) {
      return a.first->order() < b.first->order();
    });
    for (size_t i = 0; i < bounds_.size(); ++i) {
      const auto& [bound, t] = bounds_[i];
      if (i > 0 && bounds_[i - 1].first->order() == bound->order()) {
        return absl::InvalidArgumentError(
            absl::StrCat("Tables ", bounds_[i - 1].second, " and ", t,
                         " of this update (counted from 0) are the same one, "
                         "of bounded size; give it once."));
      }
      const absl::Status status = bound->Pin(IdsOf(t));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // The distinct ids of a table.
  std::vector<int64_t> IdsOf(size_t table) {
    std::vector<int64_t> ids;
    TableGradients& gradients = *gradients_[table];
    SumBlock block;
    for (int64_t task = 0; task < gradients.num_tasks(); ++task) {
      auto reader = gradients.Read(task);
      while (reader->Next(&block, {})) {
        ids.insert(ids.end(), block.ids.begin(), block.ids.begin() + block.n);
      }
    }
    return ids;
  }

  // Makes all the room before anything is changed.
  absl::Status Reserve(const std::vector<StepTask>& tasks) {
    return For(tasks, [&](const StepTask& task) {
      RowSink* sink = tables_[task.table].sink;
      absl::Status status;
      for (const auto& part : gradients_[task.table]->PartSizes(task.part)) {
        if (!status.ok() || IsDirect(*sink)) break;
        sink->Lock(part.part);
        status = sink->Reserve(part.part, part.ids);
        sink->Unlock(part.part);
      }
      return status;
    });
  }

  absl::Status Update(const std::vector<StepTask>& tasks) {
    std::vector<int64_t> nonfinite_rows(tasks.size(), 0);
    const absl::Status status = For(tasks, [&](const StepTask& task) {
      TableGradients& gradients = *gradients_[task.table];
      static thread_local UpdateScratch scratch;
      TaskUpdater updater(tables_[task.table], nonfinite_,
                          gradients.PartSizes(task.part), &scratch);
      absl::Status status = updater.Run(gradients.Read(task.part).get());
      nonfinite_rows[&task - tasks.data()] = updater.nonfinite_rows();
      return status;
    });
    for (size_t i = 0; i < tasks.size(); ++i) {
      tables_[tasks[i].table].nonfinite_rows += nonfinite_rows[i];
    }
    return status;
  }

  const absl::Span<TableUpdate> tables_;
  const NonFinite nonfinite_;
  Executor* executor_ = nullptr;
  int64_t num_ids_ = 0;
  int64_t floats_ = 0;
  std::vector<std::unique_ptr<TableGradients>> gradients_;
  std::vector<std::pair<BatchBound*, size_t>> bounds_;  // And their tables.
};

}  // namespace

absl::Status GroupedUpdate(absl::Span<TableUpdate> tables, NonFinite nonfinite,
                           Executor* executor) {
  return UpdateStep(tables, nonfinite, executor).Run();
}

}  // namespace tfembed
