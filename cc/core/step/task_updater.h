#ifndef TFEMBED_CORE_STEP_TASK_UPDATER_H_
#define TFEMBED_CORE_STEP_TASK_UPDATER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/optimizers/update_rule.h"
#include "cc/core/rows/row_addresses.h"
#include "cc/core/rows/rows.h"
#include "cc/core/rows/value_type.h"
#include "cc/core/step/grouped_update.h"
#include "cc/core/step/table_gradients.h"

namespace tfembed {

// Applies an update rule, which works on floats, to rows of float16 or
// bfloat16: the values of a block of rows are converted to floats, updated and
// rounded back. Slots are floats. For one task of an update; borrows the rule.
class NarrowUpdate {
 public:
  NarrowUpdate(const UpdateRule& rule, float learning_rate, int64_t dim,
               const RowRounding& rounding)
      : rule_(rule),
        learning_rate_(learning_rate),
        dim_(dim),
        rounding_(rounding) {}

  // As UpdateRule::Apply; rows[i] is the row of ids[i], and its value `dim`
  // numbers of the rounding's type. Equal ids are adjacent, in this call and
  // across calls; each reads the row that the id before it has rounded.
  void Apply(const int64_t* ids, const MutableRow* rows, const float* gradients,
             int64_t n);

  // Takes the memory, kept by the thread that calls it, that Apply needs there
  // for up to n rows of `dim` numbers.
  static void Prepare(int64_t n, int64_t dim);

 private:
  struct Scratch {
    std::vector<float> values;
    std::vector<MutableRow> rows;
  };
  static Scratch& ThreadScratch();

  void ApplyDistinct(const int64_t* ids, const MutableRow* rows,
                     const float* gradients, int64_t n);

  const UpdateRule& rule_;
  const float learning_rate_;
  const int64_t dim_;
  const RowRounding rounding_;
  bool has_last_ = false;
  int64_t last_id_ = 0;
  uint64_t occurrence_ = 0;  // The last id's.
};

// Says whether all rows exist already and need no room; see
// RowSink::rank_limit.
inline bool IsDirect(const RowSink& sink) { return sink.rank_limit() != 0; }

// Updates the rows of one task of a step: while the rows of a block are
// prefetched, the next block is summed. Use it once, in one thread.
class TaskUpdater {
 public:
  // Borrows the table, whose sink has room for all ids that train. Adds the
  // task's ids, of which it has room for all, to `touched` if the rule updates
  // all other rows too.
  TaskUpdater(const TableUpdate& table, NonFinite nonfinite,
              std::vector<int64_t>* touched);
  TaskUpdater(const TaskUpdater&) = delete;
  TaskUpdater& operator=(const TaskUpdater&) = delete;
  ~TaskUpdater() { LeavePart(); }

  // Takes the memory, kept by the thread that calls it, that Run needs there.
  static void Prepare(const TableUpdate& table);

  // REQUIRES: Prepare in this thread. Takes no memory.
  void Run(SumReader* reader);

  int64_t nonfinite_rows() const { return nonfinite_rows_; }

 private:
  // Sums, and their rows, which are being prefetched.
  struct PendingBlock {
    SumBlock sums;
    std::vector<MutableRow> rows;  // One per sum.
  };
  // A thread's buffers, kept from step to step.
  struct Scratch {
    PendingBlock blocks[2];
    std::vector<int64_t> new_ids;
    std::vector<MutableRow> new_rows;
  };
  static Scratch& ThreadScratch();

  void EnterPart(int part, PendingBlock* last);
  void LeavePart();
  void Find(PendingBlock* block);
  void FindOccurrences(PendingBlock* block);
  void DropRefused(PendingBlock* block);
  void Apply(PendingBlock* block);

  static constexpr int kNoPart = -1;

  const TableUpdate& table_;
  const int64_t dim_;
  const NonFinite nonfinite_;
  Scratch& scratch_;
  NarrowUpdate narrow_;
  const bool is_narrow_;
  int part_ = kNoPart;
  int64_t nonfinite_rows_ = 0;
  std::vector<int64_t>* const touched_;
  // The last id that was looked up without accumulation, and its row.
  bool has_last_ = false;
  int64_t last_id_ = 0;
  MutableRow last_row_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_TASK_UPDATER_H_
