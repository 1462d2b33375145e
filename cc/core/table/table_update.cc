// Training: the sink of grouped updates, and value and slots of rows as floats
// for update rules outside of the core.
#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/table/row_writes.h"
#include "cc/core/table/table_bound.h"
#include "cc/core/table/table_stripe.h"

namespace tfembed {
namespace {

constexpr int64_t kKeysPerTask = 1024;

std::string Describe(const SlotLayout& slots) {
  if (slots.names.empty()) return "no rule";
  return absl::StrCat("'", slots.owner, "' (", absl::StrJoin(slots.names, ", "),
                      ")");
}

}  // namespace

class EmbeddingTable::Sink final : public RowSink {
 public:
  explicit Sink(EmbeddingTable* table)
      : table_(table),
        now_(table->Tick()),
        rounding_(table->Rounding(now_)),
        open_(table),
        bound_(table, /*trains=*/true) {}

  ~Sink() override {
    for (int part = 0; part < kNumStripes; ++part) {
      if (!rooms_[part].is_kept) continue;
      const StripeLock lock(table_->stripes_, table_->stripes_[part]);
      FreeRoom(part);
    }
  }

  int64_t dim() const override { return table_->dim(); }
  RowRounding rounding() const override { return rounding_; }
  int num_parts() const override { return kNumStripes; }
  void Ranks(const int64_t* ids, int64_t n, uint64_t* ranks) const override {
    for (int64_t i = 0; i < n; ++i) ranks[i] = HashKey(ids[i]);
  }
  uint64_t rank_limit() const override { return 0; }

  std::string NameOf(int64_t id) const override {
    const StringKeys* const strings = table_->strings();
    if (strings == nullptr) return RowSink::NameOf(id);
    absl::string_view text;
    strings->Strings({&id, 1}, &text);
    return absl::StrCat("'", absl::CHexEscape(text), "'");
  }

  absl::Status Check(const int64_t* ids, int64_t n) const override {
    return absl::OkStatus();
  }

  TableHold* hold() override {
    if (table_->max_size_ > 0) return &bound_;
    return &open_;
  }

  absl::Status Reserve(int part, const int64_t* ids, int64_t n) override {
    TableStripe& stripe = table_->stripes_[part];
    const StripeLock lock(table_->stripes_, stripe);
    AdmissionFilter* const filter = stripe.mutable_filter();
    // The latter are to train now; of those that share counters, or that other
    // steps count meanwhile, a few more may.
    int64_t new_ids = n, inserted = n;
    if (ids != nullptr) {
      new_ids = inserted = 0;
      for (int64_t i = 0; i < n; ++i) {
        const uint64_t hash = HashKey(ids[i]);
        if (stripe.Find(hash, ids[i]) != HashIndex::kNoRow) continue;
        ++new_ids;
        inserted += filter == nullptr || filter->WouldAdmit(hash, ids[i]);
      }
    }
    // Keep room for all keys: a key that is there may go meanwhile.
    const int64_t rows = bound_.is_held() ? 0 : n;
    RowStore& store = *table_->store_;
    const absl::StatusOr<int64_t> fresh = store.Promise(rows);
    if (!fresh.ok()) return fresh.status();
    Room& room = rooms_[part];
    room.is_kept = true;
    room.rows = rows;
    const int64_t bytes =
        std::min(*fresh, store.BytesOf(stripe.CountFreshRows(inserted)));
    absl::Status status;
    if (ids != nullptr) {
      status = room.memory.Ask(bytes);
    } else if (!room.memory.AskForMore(bytes)) {
      status = absl::ResourceExhaustedError("Perhaps there is no memory.");
    }
    const int64_t places = bound_.Places(part, new_ids);
    if (status.ok()) status = stripe.Reserve(places);
    if (status.ok()) room.places = places;
    if (status.ok() && filter != nullptr) {
      status = filter->Reserve(new_ids);
      if (status.ok()) room.notes = new_ids;
    }
    table_->stripes_[part].mutex().AssertHeld();
    if (!status.ok()) FreeRoom(part);
    return status;
  }

  void Lock(int part) override
      ABSL_EXCLUSIVE_LOCK_FUNCTION(table_->stripes_[part].mutex()) {
    table_->stripes_[part].mutex().lock();
  }
  void Unlock(int part) override
      ABSL_UNLOCK_FUNCTION(table_->stripes_[part].mutex()) {
    FreeRoom(part);
    table_->stripes_[part].mutex().unlock();
  }

  bool refuses() const override { return !table_->admits_all_; }

  void FindOrInsert(int part, const int64_t* ids, int64_t n,
                    MutableRow* rows) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_->stripes_[part].mutex()) {
    StripeIndexes indexes = {};  // Only this part's, as all ids are.
    table_->stripes_[part].index().Show(part, &indexes);
    for (int64_t begin = 0; begin < n; begin += kFindKeys) {
      FindOrInsertBlock(part, indexes, ids + begin,
                        std::min(n - begin, kFindKeys), rows + begin);
    }
  }

  int64_t num_slices() const override { return kNumStripes; }

  void VisitSlice(int64_t slice, const RowVisitor& visit) override {
    TableStripe& stripe = table_->stripes_[slice];
    const StripeLock lock(table_->stripes_, stripe);
    const RowAt row_at(table_->layout_);
    const HashIndex& index = stripe.index();
    int64_t ids[kVisitRows];
    MutableRow rows[kVisitRows];
    int64_t n = 0;
    index.ForEach(0, index.num_buckets(), [&](int64_t id, uint32_t row) {
      ids[n] = id;
      rows[n] = row_at(table_->store_->Row(row));
      if (++n < kVisitRows) return;
      visit(absl::MakeSpan(ids, n), rows);
      n = 0;
    });
    if (n > 0) visit(absl::MakeSpan(ids, n), rows);
  }

 private:
  // The hold on a table without a bound.
  class OpenHold final : public TableHold {
   public:
    explicit OpenHold(EmbeddingTable* table)
        : table_(table), drops_(table->drops()) {}

    uintptr_t order() const override {
      return reinterpret_cast<uintptr_t>(table_);
    }
    bool is_bounded() const override { return false; }
    absl::Status Pin(absl::Span<const int64_t> /*ids*/) override {
      hold_ = std::shared_lock<SharedMutex>(table_->batches_);
      return table_->CheckDrops(drops_);
    }
    void MakeRoom() override {}

   private:
    EmbeddingTable* const table_;
    const uint32_t drops_;  // When the sink was made.
    std::shared_lock<SharedMutex> hold_;
  };

  // The room that is kept for a part.
  struct Room {
    bool is_kept = false;
    int64_t rows = 0;
    MemoryPromise memory;  // For these.
    int64_t places = -1;   // In its index.
    int64_t notes = 0;     // Keys that its admission filter may have to note.
  };

  void FreeRoom(int part)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_->stripes_[part].mutex()) {
    Room& room = rooms_[part];
    if (!std::exchange(room.is_kept, false)) return;
    table_->store_->Withdraw(std::exchange(room.rows, 0));
    room.memory.Return();
    const int64_t places = std::exchange(room.places, -1);
    if (places >= 0) table_->stripes_[part].Release(places);
    const int64_t notes = std::exchange(room.notes, 0);
    if (notes > 0) table_->stripes_[part].mutable_filter()->Release(notes);
  }

  // FindOrInsert of up to kFindKeys ids. Rows that are found may be written:
  // they are the table's own.
  void FindOrInsertBlock(int part, const StripeIndexes& indexes,
                         const int64_t* ids, int64_t n, MutableRow* rows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_->stripes_[part].mutex()) {
    table_->stripes_.any().AssertReaderHeld();  // By the part's lock.
    TableStripe& stripe = table_->stripes_[part];
    stripe.mutex().AssertHeld();
    RowStore* const store = table_->store_.get();
    AdmissionFilter* const filter = stripe.mutable_filter();
    const bool touches = table_->touches_;
    const float* found[kFindKeys];
    const auto row_of = [&](int64_t i) { return const_cast<float*>(found[i]); };
    FindBlock block;
    SetKeys(*store, indexes, ids, n, &block);
    block.floats_to_fetch = store->width();
    block.rows = found;
    ActiveKernels().ask_for_homes(&block);
    const int64_t num_unsettled = ActiveKernels().find_at_homes(&block);
    int32_t inserted[kFindKeys];
    int64_t num_inserted = 0, num_refused = 0;
    AskPastHomes(block, num_unsettled);
    for (int64_t j = 0; j < num_unsettled; ++j) {
      const int32_t i = block.unsettled[j];
      const uint64_t hash = HashKey(ids[i]);
      bool is_new = false;
      uint32_t row = HashIndex::kNoRow;
      if (filter != nullptr) row = stripe.Find(hash, ids[i]);
      const bool refused = filter != nullptr && row == HashIndex::kNoRow &&
                           !filter->Admit(hash, ids[i]);
      if (row == HashIndex::kNoRow && !refused) {
        row = stripe.FindOrInsert(hash, ids[i], store, &is_new);
      }
      found[i] = refused ? nullptr : store->Row(row);
      if (!refused) PrefetchRow(found[i], store->width());
      if (is_new) inserted[num_inserted++] = i;
      num_refused += refused;
    }
    for (int64_t j = 0; j < num_inserted; ++j) {
      const int32_t i = inserted[j];
      table_->initial_rows_.Fill(ids[i], row_of(i));
      table_->FillNewTail(row_of(i));
    }
    const RowAt row_at(table_->layout_);
    for (int64_t i = 0; i < n; ++i) {
      rows[i] = found[i] == nullptr ? MutableRow() : row_at(row_of(i));
      if (touches && found[i] != nullptr) table_->Touch(now_, row_of(i));
    }
    table_->admitted_.Add(num_inserted);
    table_->refused_.Add(num_refused);
  }

  // From a row's address to those of its slots.
  class RowAt {
   public:
    explicit RowAt(const RowLayout& layout) : num_slots_(layout.num_slots) {
      for (int64_t s = 0; s < num_slots_; ++s) {
        begins_[s] = layout.slot_begin(s);
      }
    }

    MutableRow operator()(float* row) const {
      MutableRow found;
      found.value = row;
      for (int64_t s = 0; s < num_slots_; ++s) {
        found.slots[s] = row + begins_[s];
      }
      return found;
    }

   private:
    const int64_t num_slots_;
    int64_t begins_[kMaxSlots] = {};
  };

  EmbeddingTable* const table_;
  const Moment now_;
  const RowRounding rounding_;
  OpenHold open_;  // One of the two is used.
  Bound bound_;
  std::array<Room, kNumStripes> rooms_;  // Each guarded by its part's lock.
};

std::unique_ptr<RowSink> EmbeddingTable::Write() {
  return std::make_unique<Sink>(this);
}

absl::Status EmbeddingTable::CheckTrained(const TrainedForm& form) const {
  const int64_t width = form.width;
  const int64_t wanted = dim_ + layout_.slot_words();
  if (!type_.is_trainable()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Rows of ", type_.name(), " cannot be trained."));
  }
  const SlotLayout* const rule = form.rule;
  const bool has_rule = rule != nullptr && !rule->owner.empty();
  if (has_rule && (rule->names != slots_.names ||
                   (!rule->names.empty() && rule->owner != slots_.owner))) {
    return absl::FailedPreconditionError(absl::StrCat(
        "A call that was made, or traced, for the slots of ", Describe(*rule),
        " met rows with those of ", Describe(slots_),
        ". Trace the function again: make a new tf.function of it."));
  }
  if (width == wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "Value and slots of a row have ", wanted, " numbers; got ", width,
      ". An optimizer may have been attached since: look at its slots again."));
}

absl::Status EmbeddingTable::LookupTrained(absl::Span<const int64_t> keys,
                                           const TrainedForm& form, float* rows,
                                           Executor* executor) const {
  SharedLocks locks(stripes_);
  const int64_t width = form.width;
  const absl::Status status = CheckTrained(form);
  if (!status.ok()) return status;
  const int64_t n = keys.size();
  const int64_t tasks = (n + kKeysPerTask - 1) / kKeysPerTask;
  ParallelFor(executor, tasks, [&](int64_t task) {
    stripes_.AssertReaderHeld();
    stripes_.any().AssertReaderHeld();
    std::vector<float> new_row(layout_.width());
    const int64_t end = std::min(n, (task + 1) * kKeysPerTask);
    for (int64_t i = task * kKeysPerTask; i < end; ++i) {
      const uint64_t hash = HashKey(keys[i]);
      const uint32_t found = stripes_.index(StripeOf(hash)).Find(hash, keys[i]);
      const float* row = new_row.data();
      if (found != HashIndex::kNoRow) {
        row = store_->Row(found);
      } else {
        initial_rows_.Fill(keys[i], new_row.data());
        FillNewTail(new_row.data());
      }
      ReadTrained(row, rows + i * width);
    }
  });
  return absl::OkStatus();
}

absl::Status EmbeddingTable::WriteTrained(absl::Span<const int64_t> keys,
                                          const TrainedForm& form,
                                          const float* rows, bool add,
                                          Executor* executor) {
  RowWrites writes = {
      add ? RowWrites::Kind::kAddTrained : RowWrites::Kind::kTrained, rows,
      form.width * static_cast<int64_t>(sizeof(float))};
  writes.rule = form.rule;
  return WriteRows(keys, writes, executor);
}

void EmbeddingTable::ReadTrained(const float* row, float* to) const {
  type_.ToFloats(row, to, dim_);
  CopyRow(row + layout_.slots_begin(), to + dim_, layout_.slot_words());
}

void EmbeddingTable::WriteTrainedRow(const RowWrites& writes, uint32_t position,
                                     int64_t key, bool is_new,
                                     float* row) const {
  const auto* from = reinterpret_cast<const float*>(writes.row(position));
  const int64_t width = dim_ + layout_.slot_words();
  uint64_t occurrence = 0;  // The last one of a key is what stays.
  if (writes.kind == RowWrites::Kind::kAddTrained) {
    occurrence = position;
    if (is_new) initial_rows_.Fill(key, row);
    if (type_.is_float32()) {
      AddRow(from, row, width);
      return;
    }
    ReadTrained(row, writes.scratch);
    AddRow(from, writes.scratch, width);
    from = writes.scratch;
  }
  writes.rounding.Round(from, dim_, key, occurrence, row);
  CopyRow(from + dim_, row + layout_.slots_begin(), width - dim_);
}

}  // namespace tfembed
