#include "cc/core/step/grouped_update.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/step/step_holds.h"
#include "cc/core/step/table_gradients.h"
#include "cc/core/step/task_updater.h"

namespace tfembed {
namespace {

// Fewer gradient floats than these are summed faster than a second thread wakes
// up.
constexpr int64_t kSerialFloats = 1 << 15;

int64_t NumIds(absl::Span<const BagGradients> features) {
  int64_t n = 0;
  for (const BagGradients& feature : features) n += feature.bags.num_ids();
  return n;
}

// Into how many tasks to deal `num_ids` of the step's `step_ids`: some per
// thread in all, since they are not equally long.
int64_t TasksOfTable(int64_t num_ids, int64_t step_ids,
                     const Executor* executor) {
  constexpr int64_t kTasksPerThread = 4;
  constexpr int64_t kMinIds = 1024;
  const int64_t threads = NumThreads(executor);
  if (threads == 1 || step_ids == 0) return 1;
  const int64_t share = kTasksPerThread * threads * num_ids / step_ids;
  return std::clamp<int64_t>(share, 1, num_ids / kMinIds + 1);
}

// Tells for ascending ids whether a sorted list has them.
class AscendingMembers {
 public:
  explicit AscendingMembers(const std::vector<int64_t>& ids) : ids_(ids) {}

  bool Has(int64_t id) {
    if (!found_first_) {
      next_ = std::lower_bound(ids_.begin(), ids_.end(), id);
      found_first_ = true;
    }
    while (next_ != ids_.end() && *next_ < id) ++next_;
    return next_ != ids_.end() && *next_ == id;
  }

 private:
  const std::vector<int64_t>& ids_;
  std::vector<int64_t>::const_iterator next_;
  bool found_first_ = false;
};

// Tasks that change tables. Each takes its memory before it changes anything;
// those for which another thread is refused memory wait for the caller, who has
// taken his own before the first change. So all are done or none.
class ChangingTasks {
 public:
  explicit ChangingTasks(int64_t n) : is_done_(n) {}

  // Does body(0) .. body(n - 1); each throws std::bad_alloc before its first
  // change or not at all, and never in the caller's thread.
  template <class Body>
  void Run(Executor* executor, const Body& body) {
    const int64_t n = is_done_.size();
    ParallelFor(executor, n, [&](int64_t i) {
      try {
        body(i);
        is_done_[i] = true;
      } catch (const std::bad_alloc&) {
      }
    });
    for (int64_t i = 0; i < n; ++i) {
      if (!is_done_[i]) body(i);
    }
  }

 private:
  std::vector<char> is_done_;
};

// Applies a table's rule with a gradient of 0 to all rows that the table has
// but those that a step touched. The constructor takes all memory.
class OtherRows {
 public:
  // Has room for so many touched ids.
  OtherRows(const TableUpdate& table, int64_t most_touched)
      : table_(table),
        zeros_(kVisitRows * table.sink->dim(), 0),
        slices_(table.sink->num_slices()) {
    touched_.reserve(most_touched);
    Prepare();
  }

  // Distinct ids, in any order.
  void Leave(const std::vector<int64_t>& touched) {
    touched_.insert(touched_.end(), touched.begin(), touched.end());
  }

  void Update(Executor* executor) {
    std::sort(touched_.begin(), touched_.end());
    slices_.Run(executor, [&](int64_t slice) {
      Prepare();
      UpdateSlice(slice);
    });
  }

 private:
  // The thread's memory.
  void Prepare() const {
    if (table_.sink->rounding().type().is_float32()) return;
    NarrowUpdate::Prepare(kVisitRows, table_.sink->dim());
  }

  void UpdateSlice(int64_t slice) {
    RowSink* const sink = table_.sink;
    const int64_t dim = sink->dim();
    const bool is_ascending = sink->rank_limit() != 0;
    AscendingMembers members(touched_);
    NarrowUpdate narrow(*table_.rule, table_.learning_rate, dim,
                        sink->rounding());
    const auto update = [&](absl::Span<int64_t> ids, MutableRow* rows) {
      int64_t n = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool is_touched =
            is_ascending
                ? members.Has(ids[i])
                : std::binary_search(touched_.begin(), touched_.end(), ids[i]);
        if (is_touched) continue;
        ids[n] = ids[i];
        rows[n++] = rows[i];
      }
      if (sink->rounding().type().is_float32()) {
        table_.rule->Apply(rows, zeros_.data(), n, dim, table_.learning_rate);
      } else {
        narrow.Apply(ids.data(), rows, zeros_.data(), n);
      }
    };
    sink->VisitSlice(slice, std::cref(update));  // A copy takes memory.
  }

  const TableUpdate& table_;
  const std::vector<float> zeros_;
  ChangingTasks slices_;
  std::vector<int64_t> touched_;
};

// The square of a row's norm; 0 where the row has a NaN or an infinity.
double FiniteSquare(const float* row, int64_t dim) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t c = 0;
  for (; c + kLanes <= dim; c += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] += row[c + i] * row[c + i];
  }
  double square = 0;
  for (float lane : lanes) square += lane;
  for (; c < dim; ++c) square += double{row[c]} * row[c];
  if (std::isfinite(square)) return square;
  if (!ActiveKernels().all_finite(row, dim)) return 0;
  square = 0;  // In float64, since a float32 square was too large.
  for (c = 0; c < dim; ++c) square += double{row[c]} * row[c];
  return square;
}

// The squares of a task's sums.
std::vector<double> FiniteSquares(SumReader* reader, int64_t dim) {
  std::vector<double> squares;
  SumBlock block;
  while (reader->Next(&block, {})) {
    for (int64_t i = 0; i < block.n; ++i) {
      squares.push_back(FiniteSquare(block.sums.data() + i * dim, dim));
    }
  }
  return squares;
}

// One call of GroupedUpdate.
class UpdateStep {
 public:
  UpdateStep(absl::Span<TableUpdate> tables, NonFinite nonfinite,
             absl::Span<const NormLimit> limits, Executor* executor)
      : tables_(tables),
        nonfinite_(nonfinite),
        limits_(limits),
        is_limited_(tables.size()),
        given_executor_(executor) {
    for (const NormLimit& limit : limits) {
      for (int64_t t : limit.tables) is_limited_[t] = true;
    }
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
    if (status.ok()) KeepWithinLimits();
    if (status.ok()) status = holds_.Pin(executor_);
    if (status.ok()) status = Reserve(kept);
    if (!status.ok()) return status;
    Changes changes(all, tables_, gradients_);
    holds_.MakeRoom();
    Update(all, &changes);
    return absl::OkStatus();
  }

 private:
  // A task of one table's gradients, or one of its ranges.
  struct StepTask {
    int64_t table;
    int64_t part;
  };

  bool KeepsSorted(int64_t table) const {
    return nonfinite_ == NonFinite::kRefuse || is_limited_[table] ||
           !IsDirect(*tables_[table].sink);
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
      SumReaderPlace place;
      return RefuseNonFinite(tables_[task.table].name,
                             *tables_[task.table].sink,
                             gradients_[task.table]->Read(task.part, &place));
    });
  }

  // Scales gradients whose norm is above its limit. Sums are read here and,
  // scaled, again: to keep them in between takes memory, and no less time.
  void KeepWithinLimits() {
    if (limits_.empty()) return;
    std::vector<StepTask> tasks;
    for (const StepTask& task : Tasks(false)) {
      if (is_limited_[task.table]) tasks.push_back(task);
    }
    std::vector<std::vector<double>> squares(tasks.size());
    ParallelFor(executor_, tasks.size(), [&](int64_t i) {
      const auto [t, part] = tasks[i];
      SumReaderPlace place;
      squares[i] = FiniteSquares(gradients_[t]->Read(part, &place),
                                 tables_[t].sink->dim());
    });
    // Row by row, so that it is the same however rows are dealt to tasks.
    std::vector<double> of_table(tables_.size(), 0);
    for (size_t i = 0; i < tasks.size(); ++i) {
      for (double square : squares[i]) of_table[tasks[i].table] += square;
    }
    for (const NormLimit& limit : limits_) {
      double square = 0;
      for (int64_t t : limit.tables) square += of_table[t];
      const double norm = std::sqrt(square);
      if (norm <= limit.most) continue;
      for (int64_t t : limit.tables) gradients_[t]->Scale(limit.most / norm);
    }
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

  struct TaskResult {
    int64_t nonfinite_rows = 0;
    std::vector<int64_t> touched;
  };

  // All the memory that Update needs, in the thread that makes it.
  struct Changes {
    Changes(const std::vector<StepTask>& all, absl::Span<TableUpdate> tables,
            const StepHolds::Gradients& gradients)
        : tasks(all.size()), results(all.size()), others(tables.size()) {
      std::vector<int64_t> most(tables.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const auto [t, part] = all[i];
        if (!tables[t].rule->moves_all_rows()) continue;
        results[i].touched.reserve(gradients[t]->MostSums(part));
        most[t] += gradients[t]->MostSums(part);
      }
      for (size_t t = 0; t < tables.size(); ++t) {
        gradients[t]->Prepare();
        TaskUpdater::Prepare(tables[t]);
        if (tables[t].rule->moves_all_rows()) {
          others[t] = std::make_unique<OtherRows>(tables[t], most[t]);
        }
      }
    }

    ChangingTasks tasks;
    std::vector<TaskResult> results;                 // By task.
    std::vector<std::unique_ptr<OtherRows>> others;  // By table, or null.
  };

  void Update(const std::vector<StepTask>& tasks, Changes* changes) {
    std::vector<TaskResult>& results = changes->results;
    changes->tasks.Run(executor_, [&](int64_t i) {
      const auto [t, part] = tasks[i];
      SumReaderPlace place;
      TaskUpdater::Prepare(tables_[t]);
      SumReader* const reader = gradients_[t]->Read(part, &place);
      TaskUpdater updater(tables_[t], nonfinite_, &results[i].touched);
      updater.Run(reader);
      results[i].nonfinite_rows = updater.nonfinite_rows();
    });
    for (size_t i = 0; i < tasks.size(); ++i) {
      const int64_t t = tasks[i].table;
      tables_[t].nonfinite_rows += results[i].nonfinite_rows;
      OtherRows* const others = changes->others[t].get();
      if (others != nullptr) others->Leave(results[i].touched);
    }
    for (const auto& others : changes->others) {
      if (others != nullptr) others->Update(given_executor_);
    }
  }

  const absl::Span<TableUpdate> tables_;
  const NonFinite nonfinite_;
  const absl::Span<const NormLimit> limits_;
  std::vector<bool> is_limited_;  // By table.
  Executor* const given_executor_;
  Executor* executor_ = nullptr;  // Null for a small step.
  int64_t num_ids_ = 0;
  int64_t floats_ = 0;
  std::vector<std::unique_ptr<TableGradients>> gradients_;
  StepHolds holds_{tables_, gradients_, nonfinite_ == NonFinite::kSkip};
};

// Copies a task's sums to their places.
void CopySums(SumReader* reader, int64_t dim, int64_t* ids, float* rows) {
  SumBlock block;
  while (reader->Next(&block, {})) {
    std::copy_n(block.ids.begin(), block.n, ids);
    std::copy_n(block.sums.begin(), block.n * dim, rows);
    ids += block.n;
    rows += block.n * dim;
  }
}

}  // namespace

absl::Status GroupedUpdate(absl::Span<TableUpdate> tables, NonFinite nonfinite,
                           Executor* executor,
                           absl::Span<const NormLimit> limits) {
  return UpdateStep(tables, nonfinite, limits, executor).Run();
}

absl::StatusOr<SummedGradients> SumGradients(
    absl::Span<const BagGradients> features, int64_t dim, Executor* executor) {
  const int64_t num_ids = NumIds(features);
  if (num_ids * dim < kSerialFloats) executor = nullptr;
  TableGradients::Options options;
  options.features = features;
  options.dim = dim;
  options.ids = RangeOfIds(features);
  options.max_tasks = TasksOfTable(num_ids, num_ids, executor);
  options.keeps_sorted = true;
  const auto owner = TableGradients::Create(options);
  if (!owner.ok()) return owner.status();
  TableGradients& gradients = **owner;
  ParallelFor(executor, gradients.num_ranges(), [&](int64_t range) {
    gradients.Collect(range).IgnoreError();  // Without a sink all ids are good.
  });
  gradients.Deal();
  ParallelFor(executor, gradients.num_tasks(),
              [&](int64_t task) { gradients.Sort(task); });
  std::vector<int64_t> starts = {0};
  for (int64_t task = 0; task < gradients.num_tasks(); ++task) {
    starts.push_back(starts.back() + gradients.PartSizes(task)[0].ids);
  }
  SummedGradients result;
  result.ids.resize(starts.back());
  result.rows.resize(starts.back() * dim);
  ParallelFor(executor, gradients.num_tasks(), [&](int64_t task) {
    SumReaderPlace place;
    CopySums(gradients.Read(task, &place), dim,
             result.ids.data() + starts[task],
             result.rows.data() + starts[task] * dim);
  });
  return result;
}

}  // namespace tfembed
