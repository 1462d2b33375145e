#include "cc/core/step/task_updater.h"

#include <algorithm>
#include <utility>

namespace tfembed {

NarrowUpdate::Scratch& NarrowUpdate::ThreadScratch() {
  static thread_local Scratch scratch;
  return scratch;
}

void NarrowUpdate::Prepare(int64_t n, int64_t dim) {
  Scratch& scratch = ThreadScratch();
  const size_t numbers = n * dim;
  scratch.values.resize(std::max(scratch.values.size(), numbers));
  scratch.rows.reserve(n);
}

void NarrowUpdate::Apply(const int64_t* ids, const MutableRow* rows,
                         const float* gradients, int64_t n) {
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {
    end = begin + 1;
    while (end < n && ids[end] != ids[end - 1]) ++end;
    ApplyDistinct(ids + begin, rows + begin, gradients + begin * dim_,
                  end - begin);
  }
}

void NarrowUpdate::ApplyDistinct(const int64_t* ids, const MutableRow* rows,
                                 const float* gradients, int64_t n) {
  Prepare(n, dim_);
  Scratch& scratch = ThreadScratch();
  scratch.rows.assign(rows, rows + n);
  MutableRow* const wide = scratch.rows.data();
  for (int64_t i = 0; i < n; ++i) {
    wide[i].value = scratch.values.data() + i * dim_;
    rounding_.type().ToFloats(rows[i].value, wide[i].value, dim_);
  }
  rule_.Apply(wide, gradients, n, dim_, learning_rate_);
  for (int64_t i = 0; i < n; ++i) {
    const bool is_repeat = has_last_ && ids[i] == last_id_;
    occurrence_ = is_repeat ? occurrence_ + 1 : 0;
    has_last_ = true;
    last_id_ = ids[i];
    rounding_.Round(wide[i].value, dim_, ids[i], occurrence_, rows[i].value);
  }
}

TaskUpdater::Scratch& TaskUpdater::ThreadScratch() {
  static thread_local Scratch scratch;
  return scratch;
}

TaskUpdater::TaskUpdater(const TableUpdate& table, NonFinite nonfinite,
                         std::vector<int64_t>* touched)
    : table_(table),
      dim_(table.sink->dim()),
      nonfinite_(nonfinite),
      scratch_(ThreadScratch()),
      narrow_(*table.rule, table.learning_rate, dim_, table.sink->rounding()),
      is_narrow_(!table.sink->rounding().type().is_float32()),
      touched_(touched) {}

void TaskUpdater::Prepare(const TableUpdate& table) {
  const int64_t dim = table.sink->dim(), n = SumBlock::MostSums(dim);
  Scratch& scratch = ThreadScratch();
  for (PendingBlock& block : scratch.blocks) {
    block.sums.Prepare(dim);
    block.rows.reserve(n);
  }
  scratch.new_ids.reserve(n);
  scratch.new_rows.reserve(n);
  if (!table.sink->rounding().type().is_float32()) {
    NarrowUpdate::Prepare(n, dim);
  }
}

void TaskUpdater::Run(SumReader* reader) {
  PendingBlock* next = &scratch_.blocks[0];
  PendingBlock* last = &scratch_.blocks[1];
  const int num_slots = table_.rule->slot_names().size();
  const SlotSet row_wise = table_.rule->row_wise_slots();
  last->sums.n = 0;
  while (reader->Next(&next->sums,
                      {last->rows.data(), last->sums.n, num_slots, row_wise})) {
    if (table_.rule->moves_all_rows()) {
      touched_->insert(touched_->end(), next->sums.ids.begin(),
                       next->sums.ids.begin() + next->sums.n);
    }
    if (nonfinite_ == NonFinite::kSkip) {
      nonfinite_rows_ += DropNonFinite(dim_, &next->sums);
      if (next->sums.n == 0) continue;
    }
    EnterPart(next->sums.part, last);
    Find(next);
    if (table_.sink->refuses()) DropRefused(next);
    Apply(last);
    std::swap(next, last);
  }
  Apply(last);
}

void TaskUpdater::EnterPart(int part, PendingBlock* last) {
  if (part == part_ || IsDirect(*table_.sink)) return;
  Apply(last);
  LeavePart();
  table_.sink->Lock(part);
  part_ = part;
}

void TaskUpdater::LeavePart() {
  if (part_ != kNoPart) table_.sink->Unlock(part_);
  part_ = kNoPart;
}

void TaskUpdater::Find(PendingBlock* block) {
  const int64_t n = block->sums.n;
  block->rows.resize(std::max<size_t>(block->rows.size(), n));
  if (!table_.rule->accumulate()) return FindOccurrences(block);
  table_.sink->FindOrInsert(block->sums.part, block->sums.ids.data(), n,
                            block->rows.data());
}

// The occurrences of an id follow each other, through all blocks. The sink is
// asked for each id once, since it counts how often that was.
void TaskUpdater::FindOccurrences(PendingBlock* block) {
  const int64_t n = block->sums.n;
  const std::vector<int64_t>& ids = block->sums.ids;
  std::vector<int64_t>& new_ids = scratch_.new_ids;
  std::vector<MutableRow>& new_rows = scratch_.new_rows;
  new_ids.clear();
  for (int64_t i = 0; i < n; ++i) {
    const bool is_last =
        i > 0 ? ids[i] == ids[i - 1] : has_last_ && ids[i] == last_id_;
    if (!is_last) new_ids.push_back(ids[i]);
  }
  new_rows.resize(new_ids.size());
  table_.sink->FindOrInsert(block->sums.part, new_ids.data(), new_ids.size(),
                            new_rows.data());
  size_t next = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (next < new_ids.size() && ids[i] == new_ids[next]) {
      last_row_ = new_rows[next++];
    }
    block->rows[i] = last_row_;
  }
  last_id_ = ids[n - 1];
  has_last_ = true;
}

// The ids that the table does not take yet train nothing.
void TaskUpdater::DropRefused(PendingBlock* block) {
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

void TaskUpdater::Apply(PendingBlock* block) {
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

}  // namespace tfembed
