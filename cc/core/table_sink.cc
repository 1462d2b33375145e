#include <array>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cc/core/striped_table.h"
#include "cc/core/support/overlap.h"
#include "cc/core/table_bound.h"

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

  absl::Status Reserve(int part, int64_t new_ids) override {
    std::lock_guard<std::shared_mutex> lock(table_->stripes_[part].mutex());
    const bool notes = table_->filters_[part] != nullptr;
    const Room room = {true, notes ? new_ids : 0, bound_.Places(part, new_ids),
                       bound_.is_held() ? 0 : new_ids};
    absl::Status status = table_->store_->Promise(room.rows);
    if (!status.ok()) return status;
    status = table_->stripes_[part].Reserve(room.places);
    if (!status.ok()) {
      table_->store_->Withdraw(room.rows);
      return status;
    }
    if (notes) status = table_->filters_[part]->Reserve(room.notes);
    if (!status.ok()) {
      table_->store_->Withdraw(room.rows);
      table_->stripes_[part].Release(room.places);
      return status;
    }
    rooms_[part] = room;
    return absl::OkStatus();
  }

  void Lock(int part) override { table_->stripes_[part].mutex().lock(); }
  void Unlock(int part) override {
    FreeRoom(part);
    table_->stripes_[part].mutex().unlock();
  }

  bool refuses() const override { return table_->filters_[0] != nullptr; }

  void FindOrInsert(int part, const int64_t* ids, int64_t n,
                    MutableRow* rows) override {
    TableStripe* const stripe = &table_->stripes_[part];
    RowStore* const store = table_->store_.get();
    const HashIndex& index = stripe->index();
    const RowLayout layout = table_->layout_;
    AdmissionFilter* const filter = table_->filters_[part].get();
    const bool touches = table_->touches_;
    int64_t admitted = 0, refused = 0;
    const HashIndex::Bucket* homes[kOverlap];
    bool inserted[kOverlap];
    const auto set_row = [&](int64_t i, uint32_t number) {
      float* row = store->Row(number);
      PrefetchRow(row, store->width());
      rows[i] = RowAt(layout, row);
    };
    Overlap(
        n,
        [&](int64_t i) {
          homes[Slot(i)] = index.Home(HashKey(ids[i]));
          __builtin_prefetch(homes[Slot(i)], 1);
        },
        [&](int64_t i) {
          const HashIndex::Bucket& home = *homes[Slot(i)];
          const uint32_t row = HashIndex::FindIn(home, ids[i]);
          inserted[Slot(i)] = false;
          if (row != HashIndex::kNoRow) {
            set_row(i, row);
            return true;
          }
          rows[i].value = nullptr;
          HashIndex::PrefetchPast(home);
          return false;
        },
        [&](int64_t i) {
          const uint64_t hash = HashKey(ids[i]);
          if (filter != nullptr) {
            const uint32_t row = stripe->Find(hash, ids[i]);
            if (row != HashIndex::kNoRow) return set_row(i, row);
            if (!filter->Admit(hash, ids[i])) {
              ++refused;
              return;
            }
          }
          set_row(
              i, stripe->FindOrInsert(hash, ids[i], store, &inserted[Slot(i)]));
        },
        [&](int64_t i) {
          if (inserted[Slot(i)]) {
            table_->initial_rows_.Fill(ids[i], rows[i].value);
            table_->FillNewTail(rows[i].value);
            ++admitted;
          }
          if (touches && rows[i].value != nullptr) {
            table_->Touch(now_, rows[i].value);
          }
        });
    table_->admitted_.Add(admitted);
    table_->refused_.Add(refused);
  }

  int64_t num_slices() const override { return kNumStripes; }

  void VisitSlice(int64_t slice, const RowVisitor& visit) override {
    TableStripe& stripe = table_->stripes_[slice];
    std::lock_guard<std::shared_mutex> lock(stripe.mutex());
    const RowLayout layout = table_->layout_;
    const HashIndex& index = stripe.index();
    int64_t ids[kVisitRows];
    MutableRow rows[kVisitRows];
    int64_t n = 0;
    index.ForEach(0, index.num_buckets(), [&](int64_t id, uint32_t row) {
      ids[n] = id;
      rows[n] = RowAt(layout, table_->store_->Row(row));
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
    int64_t notes = 0;   // Keys that its admission filter may have to note.
    int64_t places = 0;  // In its index.
    int64_t rows = 0;
  };

  // REQUIRES: the caller holds the part.
  void FreeRoom(int part) {
    const Room room = std::exchange(rooms_[part], Room());
    if (!room.is_kept) return;
    table_->store_->Withdraw(room.rows);
    table_->stripes_[part].Release(room.places);
    if (room.notes > 0) table_->filters_[part]->Release(room.notes);
  }

  static MutableRow RowAt(const RowLayout& layout, float* row) {
    MutableRow found;
    found.value = row;
    float* slot = row + layout.slots_begin();
    for (int64_t s = 0; s < layout.num_slots; ++s) {
      found.slots[s] = slot;
      slot += layout.slot_width(s);
    }
    return found;
  }

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
