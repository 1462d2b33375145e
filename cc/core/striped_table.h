#ifndef TFEMBED_CORE_STRIPED_TABLE_H_
#define TFEMBED_CORE_STRIPED_TABLE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "cc/core/embedding_table.h"
#include "cc/core/key_partition.h"
#include "cc/core/policies/admission.h"
#include "cc/core/policies/eviction.h"
#include "cc/core/row_rounding.h"
#include "cc/core/row_store.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/memory_promise.h"
#include "cc/core/support/row_copy.h"
#include "cc/core/table_stripe.h"

namespace tfembed {

// The EmbeddingTable in memory: stripes of index over one store of rows.
//
// Locks. Readers hold all stripes' locks, shared. Writers lock one stripe at a
// time, exclusive; but WriteInOrder all of them, where none has to be waited
// for. Writes of rows and updates (Sink) hold batches_, shared, from the
// reservation of room to the last write; removals need not. Clear, SetSlots and
// SetSeed hold batches_ and then all stripes, exclusive.
// In a table of bounded size all writers, updates and removals included, hold
// batches_, exclusive: nothing else changes while a batch counts its new keys,
// evicts and writes.
// whole() comes before batches_, batches_ before stripes, and stripes are
// locked in order, so no two calls can wait for each other. A lock that is held
// is never asked for again. The layout of rows (layout_, slots_, new_tail_) and
// initial_rows_ change under all locks only: any one will do to read them.
//
// Its methods are spread by theme over embedding_table.cc (creation, sizes,
// slots), table_keys.cc, table_lookup.cc, table_reserve.cc, table_write*.cc,
// table_bounded_write.cc, table_remove.cc, table_sink.cc, table_training.cc,
// table_snapshot.cc, table_waiting.cc (keys not yet admitted), table_notes.cc,
// table_use.cc (policies, counts).
class StripedTable final : public EmbeddingTable {
 public:
  // The store's rows have the layout's width.
  StripedTable(const RowLayout& layout, KeyKind key_kind,
               InitialRows initial_rows, std::unique_ptr<RowStore> store);

  void set_strings(std::unique_ptr<StringKeys> strings) {
    strings_ = std::move(strings);
  }

  // Room for that many keys. ResourceExhausted.
  absl::Status ReserveKeys(int64_t keys);

  // To be called once, before the table is used. ResourceExhausted,
  // InvalidArgument.
  absl::Status SetAdmission(const std::string& policy, int64_t max_size);
  void SetEviction(std::unique_ptr<EvictionPolicy> policy, int64_t max_size);
  void SetMissingRows(InitialRows rows) { missing_rows_ = std::move(rows); }
  void SetRoundingByChance() { rounds_by_chance_ = true; }

  int64_t dim() const override { return dim_; }
  KeyKind key_kind() const override { return key_kind_; }
  StringKeys* strings() const override { return strings_.get(); }
  ValueType type() const override { return type_; }
  RowLayout layout() const override;
  int64_t size() const override;
  int64_t max_size() const override { return max_size_; }
  TableStats stats() const override;
  TableUse use() const override;
  SlotLayout slots() const override;
  uint64_t seed() const override;
  absl::string_view notes() const override {
    return touches_ ? eviction_->notes() : absl::string_view();
  }

  void LookupFrom(KeySource* keys, void* values, bool* exists,
                  Executor* executor) const override;
  absl::Status Upsert(absl::Span<const int64_t> keys, const void* values,
                      Executor* executor) override;
  absl::Status Accum(absl::Span<const int64_t> keys, const void* values,
                     const void* old_values, const bool* exists,
                     Executor* executor) override;
  absl::Status LookupTrained(absl::Span<const int64_t> keys, int64_t width,
                             float* rows, Executor* executor) const override;
  absl::Status WriteTrained(absl::Span<const int64_t> keys, int64_t width,
                            const float* rows, bool add,
                            Executor* executor) override;
  void Remove(absl::Span<const int64_t> keys, Executor* executor) override;
  void Evict(absl::Span<const int64_t> keys, Executor* executor) override;
  absl::Status ExportWorth(
      const std::string& policy,
      const std::function<absl::StatusOr<WorthBuffers>(int64_t n)>& allocate,
      Executor* executor) const override;
  int64_t num_waiting() const override;
  void IsKnown(absl::Span<const int64_t> keys, bool* known) const override;
  absl::Status ImportWaiting(absl::Span<const int64_t> keys,
                             absl::Span<const int32_t> seen) override;
  absl::Status ImportNotes(absl::Span<const int64_t> keys,
                           absl::Span<const uint32_t> notes) override;
  CountersShape counters_shape() const override;
  void ImportCounters(int64_t block,
                      absl::Span<const uint8_t> counters) override;
  void Clear() override;
  absl::Status ClearFor(int64_t keys) override;
  absl::Status SetSlots(const SlotLayout& layout) override;
  void SetSeed(uint64_t seed) override;
  std::unique_ptr<Snapshot> Freeze() const override;
  absl::Status ExportKeys(
      const std::function<absl::StatusOr<int64_t*>(int64_t n)>& allocate,
      Executor* executor) const override;
  void Contains(absl::Span<const int64_t> keys, bool* exists,
                Executor* executor) const override;
  absl::Status Import(absl::Span<const int64_t> keys, int64_t width,
                      const float* full_rows, Executor* executor) override;
  std::unique_ptr<RowSource> Read() const override;
  std::unique_ptr<RowSink> Write() override;

 private:
  absl::Status ClearRowsFor(int64_t keys);

  // These two. REQUIRES: all stripes' locks, shared or not.
  int64_t CountWaiting() const;
  void ForEachWaiting(const AdmissionFilter::WaitingVisitor& visit) const;

  class Source;         // table_lookup.cc
  class FrozenStripes;  // table_snapshot.cc
  class Sink;           // table_sink.cc
  class Bound;          // table_bound.h
  class OrderedWrite;   // table_write_in_order.cc
  struct RowWrites;     // row_writes.h

  // What a batch has reserved.
  struct Reservations {
    Reservations() { keys.fill(-1); }

    std::array<int64_t, kNumStripes> keys;  // By stripe; -1: nothing.
    std::array<int, kNumStripes> order;     // Those that may grow come first.
    MemoryPromise memory;                   // Of new rows.
  };

  absl::Status WriteRows(absl::Span<const int64_t> keys, RowWrites writes,
                         Executor* executor);
  absl::Status WriteBounded(absl::Span<const int64_t> keys, RowWrites writes,
                            Executor* executor);
  absl::Status PinWrites(Bound* bound, RowWrites* writes,
                         absl::Span<const int64_t>* keys) const;
  static absl::Status NoMemoryToPin(int64_t keys);
  // Writes a batch all of whose rows are there, if it is one that is faster so;
  // false: nothing was done. REQUIRES: the caller holds batches_.
  bool WriteInOrder(absl::Span<const int64_t> keys, RowWrites writes,
                    Executor* executor);
  // REQUIRES: the caller holds batches_, by `bound` where the table has one.
  absl::Status WriteHeld(absl::Span<const int64_t> keys, RowWrites writes,
                         Bound* bound, Executor* executor);
  bool Streams(const RowWrites& writes, int64_t n) const;
  absl::Status ReserveGroups(const KeyPartition& partition,
                             const RowWrites& writes, const Bound* bound,
                             int64_t fresh_bytes, Executor* executor,
                             Reservations* reservations);
  absl::StatusOr<int64_t> ReserveGroupsOnce(const KeyPartition& partition,
                                            const RowWrites& writes,
                                            const Bound* bound, bool counts_all,
                                            Executor* executor,
                                            Reservations* reservations);
  void ReleaseGroups(Reservations* reservations);
  absl::Status ReserveMissing(const KeyGroup& group, const RowWrites& writes,
                              int64_t leaving, TableStripe* stripe,
                              int64_t* reserved, int64_t* fresh_rows);
  static int64_t CountMissing(const KeyGroup& group, const RowWrites& writes,
                              const TableStripe& stripe);
  // `written`: for policies that count, room for an address a key.
  void WriteGroup(const KeyGroup& group, const RowWrites& writes,
                  float** written, TableStripe* stripe);
  struct GroupBlock;
  void BeginBlock(const KeyGroup& group, int64_t begin,
                  const TableStripe& stripe, GroupBlock* block) const;
  void FindOrMakeRows(const RowWrites& writes, TableStripe* stripe,
                      GroupBlock* block);
  int64_t FloatsToFetch(const RowWrites& writes) const;
  // These two return how many rows have a NaN, and ask for the homes of the
  // next block. By the kernel: upserts and accums of float32.
  int64_t WriteByKernel(const RowWrites& writes, const GroupBlock& block,
                        const GroupBlock& next) const;
  int64_t WriteRowByRow(const RowWrites& writes, const GroupBlock& block,
                        const GroupBlock& next) const;
  void AskForGiven(const RowWrites& writes, uint32_t position) const;
  std::unique_lock<std::shared_mutex> HoldIfBounded();
  // These two return how many keys were there.
  int64_t RemoveKeys(absl::Span<const int64_t> keys, Executor* executor);
  int64_t EraseGroup(const KeyGroup& group, TableStripe* stripe);

  Moment Now() const;

  // REQUIRES: a lock of the row's stripe.
  double RowWorth(const EvictionPolicy& policy, uint32_t row,
                  const Moment& now) const;

  // All keys of a locked stripe, and what their rows are worth.
  void JudgeRows(const HashIndex& index, const EvictionPolicy& policy,
                 const Moment& now, WorthBuffers to) const;

  // Of the key at `position` of a batch.
  void WriteTrainedRow(const RowWrites& writes, uint32_t position, int64_t key,
                       bool is_new, float* row) const;
  void AddValue(const RowWrites& writes, uint32_t position, int64_t key,
                float* row) const;

  template <int64_t kBytes>
  void LookupRange(const StripeIndexes& indexes, const KeySource& keys,
                   int64_t first, int64_t last, char* values, bool* exists,
                   bool streams) const;

  TableStripe& stripe(uint64_t hash) { return stripes_[StripeOf(hash)]; }
  const TableStripe& stripe(uint64_t hash) const {
    return stripes_[StripeOf(hash)];
  }

  // What missing keys read.
  const InitialRows& missing_rows() const {
    return missing_rows_.has_value() ? *missing_rows_ : initial_rows_;
  }

  // Begins a batch of writes.
  Moment Tick();

  // How that batch rounds what it trains or adds.
  RowRounding Rounding(const Moment& now) const {
    if (!rounds_by_chance_) return RowRounding(type_);
    return RowRounding(type_, seed(), now.step);
  }

  // The policy's word of a row. REQUIRES, here and below: touches_.
  uint32_t Note(const float* row) const {
    uint32_t word;
    std::memcpy(&word, row + layout_.width() - 1, sizeof(word));
    return word;
  }
  void SetNote(uint32_t word, float* row) const {
    std::memcpy(row + layout_.width() - 1, &word, sizeof(word));
  }

  // Notes in a row that it is written.
  void Touch(const Moment& now, float* row) const {
    SetNote(eviction_->Touch(Note(row), now), row);
  }

  // Makes the table's own of a note that was imported.
  void TakeNote(const Moment& now, float* row) const {
    SetNote(eviction_->Restored(Note(row), now), row);
  }

  // FailedPrecondition where trained rows have not `width` floats. REQUIRES: a
  // lock.
  absl::Status CheckTrained(int64_t width) const;
  absl::Status CheckFullWidth(int64_t width) const;
  void ReadTrained(const float* row, float* to) const;

  // What follows the value in a new row: initial slots, meta words of 0.
  void FillNewTail(float* row) const {
    CopyRow(new_tail_.data(), row + layout_.slots_begin(), new_tail_.size());
  }

  const int64_t dim_;
  const KeyKind key_kind_;
  const ValueType type_;
  std::unique_ptr<StringKeys> strings_;  // Null unless keys are strings.
  InitialRows initial_rows_;
  std::unique_ptr<RowStore> store_;
  mutable std::shared_mutex batches_;
  TableStripes stripes_;
  RowLayout layout_;
  SlotLayout slots_;
  std::vector<float> new_tail_;  // See FillNewTail.

  // Null: all keys are admitted. Guarded by the stripe's lock.
  std::array<std::unique_ptr<AdmissionFilter>, kNumStripes> filters_;
  CountersShape counters_shape_;              // Of filters_, a block each.
  std::unique_ptr<EvictionPolicy> eviction_;  // Or null.
  int64_t max_size_ = 0;                      // 0: no bound.
  int64_t hand_ = 0;  // See Bound. Guarded by batches_, exclusive.
  bool touches_ =
      false;  // Rows have a word of the eviction policy, their last.
  bool rounds_by_chance_ = false;  // To halves.
  std::optional<InitialRows> missing_rows_;
  std::atomic<uint32_t> steps_{0};

  // Added to once for some hundreds of keys.
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};

    void Add(int64_t n) {
      if (n != 0) value.fetch_add(n, std::memory_order_relaxed);
    }
  };
  mutable Counter hits_, misses_;
  Counter admitted_, refused_, evicted_, nan_rows_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_STRIPED_TABLE_H_
