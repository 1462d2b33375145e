#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cc/core/striped_table.h"
#include "cc/core/table_bound.h"
#include "cc/core/table_find.h"

namespace tfembed {
class StripedTable::Sink final : public RowSink {
 public:
  explicit Sink(StripedTable* table)
      : table_(table),
        now_(table->Tick()),
        rounding_(table->Rounding(now_)),
        open_(table),
        bound_(table, /*trains=*/true) {}

  ~Sink() override {
    for (int part = 0; part < kNumStripes; ++part) {
      if (!rooms_[part].is_kept) continue;
      std::lock_guard<std::shared_mutex> lock(table_->stripes_[part].mutex());
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
    std::lock_guard<std::shared_mutex> lock(stripe.mutex());
    const AdmissionFilter* const filter = table_->filters_[part].get();
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
    // Of all: a key that is there may go meanwhile.
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
      status = table_->filters_[part]->Reserve(new_ids);
      if (status.ok()) room.notes = new_ids;
    }
    if (!status.ok()) FreeRoom(part);
    return status;
  }

  void Lock(int part) override { table_->stripes_[part].mutex().lock(); }
  void Unlock(int part) override {
    FreeRoom(part);
    table_->stripes_[part].mutex().unlock();
  }

  bool refuses() const override { return table_->filters_[0] != nullptr; }

  void FindOrInsert(int part, const int64_t* ids, int64_t n,
                    MutableRow* rows) override {
    StripeIndexes indexes = {};  // Of this part alone, as all ids are.
    table_->stripes_[part].index().Show(part, &indexes);
    for (int64_t begin = 0; begin < n; begin += kFindKeys) {
      FindOrInsertBlock(part, indexes, ids + begin,
                        std::min(n - begin, kFindKeys), rows + begin);
    }
  }

  int64_t num_slices() const override { return kNumStripes; }

  void VisitSlice(int64_t slice, const RowVisitor& visit) override {
    TableStripe& stripe = table_->stripes_[slice];
    std::lock_guard<std::shared_mutex> lock(stripe.mutex());
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
  // Of a table without a bound.
  class OpenHold final : public TableHold {
   public:
    explicit OpenHold(StripedTable* table) : table_(table) {}

    uintptr_t order() const override {
      return reinterpret_cast<uintptr_t>(table_);
    }
    bool is_bounded() const override { return false; }
    absl::Status Pin(absl::Span<const int64_t> /*ids*/) override {
      hold_ = std::shared_lock<std::shared_mutex>(table_->batches_);
      return absl::OkStatus();
    }
    void MakeRoom() override {}

   private:
    StripedTable* const table_;
    std::shared_lock<std::shared_mutex> hold_;
  };

  // What is kept for a part.
  struct Room {
    bool is_kept = false;
    int64_t rows = 0;
    MemoryPromise memory;  // Of these.
    int64_t places = -1;   // In its index.
    int64_t notes = 0;     // Keys that its admission filter may have to note.
  };

  // REQUIRES: the caller holds the part.
  void FreeRoom(int part) {
    Room& room = rooms_[part];
    if (!std::exchange(room.is_kept, false)) return;
    table_->store_->Withdraw(std::exchange(room.rows, 0));
    room.memory.Return();
    const int64_t places = std::exchange(room.places, -1);
    if (places >= 0) table_->stripes_[part].Release(places);
    const int64_t notes = std::exchange(room.notes, 0);
    if (notes > 0) table_->filters_[part]->Release(notes);
  }

  // FindOrInsert of up to kFindKeys ids. Rows that are found may be written:
  // they are the table's own.
  void FindOrInsertBlock(int part, const StripeIndexes& indexes,
                         const int64_t* ids, int64_t n, MutableRow* rows) {
    TableStripe* const stripe = &table_->stripes_[part];
    RowStore* const store = table_->store_.get();
    AdmissionFilter* const filter = table_->filters_[part].get();
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
      if (filter != nullptr) row = stripe->Find(hash, ids[i]);
      const bool refused = filter != nullptr && row == HashIndex::kNoRow &&
                           !filter->Admit(hash, ids[i]);
      if (row == HashIndex::kNoRow && !refused) {
        row = stripe->FindOrInsert(hash, ids[i], store, &is_new);
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

  StripedTable* const table_;
  const Moment now_;
  const RowRounding rounding_;
  OpenHold open_;  // One of the two is used.
  Bound bound_;
  std::array<Room, kNumStripes> rooms_;  // Each guarded by its part's lock.
};

std::unique_ptr<RowSink> StripedTable::Write() {
  return std::make_unique<Sink>(this);
}

}  // namespace tfembed
