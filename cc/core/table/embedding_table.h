#ifndef TFEMBED_CORE_TABLE_EMBEDDING_TABLE_H_
#define TFEMBED_CORE_TABLE_EMBEDDING_TABLE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/policies/eviction.h"
#include "cc/core/rows/initial_rows.h"
#include "cc/core/rows/row_layout.h"
#include "cc/core/rows/rows.h"
#include "cc/core/rows/value_type.h"
#include "cc/core/support/executor.h"
#include "cc/core/support/memory_promise.h"
#include "cc/core/support/mutex.h"
#include "cc/core/support/row_copy.h"
#include "cc/core/table/key_partition.h"
#include "cc/core/table/key_source.h"
#include "cc/core/table/row_store.h"
#include "cc/core/table/string_keys.h"
#include "cc/core/table/table_stripe.h"

namespace tfembed {

// The slots beside the value in each row, as an update rule requires them.
struct SlotLayout {
  std::string owner;                  // The update rule's name, e.g. "adagrad".
  std::vector<std::string> names;     // E.g. {"accumulators"}.
  std::vector<float> initial_values;  // One per slot.
  SlotSet row_wise = 0;               // Slots of one float a row, not `dim`.
};

// The form of trained rows that a caller expects: `width` floats, and the slots
// of a rule, if one is named; initial values are not compared. Borrows the
// rule. A width alone is a form.
struct TrainedForm {
  TrainedForm(int64_t width,  // NOLINT(runtime/explicit): converts a width.
              const SlotLayout* rule = nullptr)
      : width(width), rule(rule) {}

  int64_t width;
  const SlotLayout* rule;
};

// The most values of a row.
inline constexpr int64_t kMaxDim = int64_t{1} << 30;

// InvalidArgument: rows of `type` cannot have such slots.
absl::Status CheckSlotLayout(const SlotLayout& layout, ValueType type);

// The dtype of a table's keys for callers; internally keys are int64.
enum class KeyKind : uint8_t { kInt64, kInt32, kString };

// The size of a table, in keys and bytes.
struct TableStats {
  int64_t size = 0;         // Keys.
  int64_t capacity = 0;     // Keys that fit before the index grows.
  int64_t index_bytes = 0;  // The hash index, keys included.
  int64_t row_bytes = 0;    // Slabs: values, slots, free rows.
};

// The use of a table since it was made, and its bytes by kind.
struct TableUse {
  int64_t hits = 0;      // Keys of lookups that were there,
  int64_t misses = 0;    // and that were not.
  int64_t admitted = 0;  // Keys that training steps inserted,
  int64_t refused = 0;   // and that they did not: not admitted yet.
  int64_t evicted = 0;   // Keys that Evict removed.
  int64_t nan_rows = 0;  // Rows with a NaN that were upserted.

  int64_t value_bytes = 0;  // Rows in use; the rest of the slabs is free.
  int64_t slot_bytes = 0;
  int64_t meta_bytes = 0;
  int64_t policy_bytes = 0;  // Beside rows and index.

  int64_t places = 0;         // For keys in the index, free ones included.
  int64_t probes = 0;         // Buckets read to find each key once.
  int64_t longest_probe = 0;  // Buckets for one key.
};

// One shard of a table without a fixed vocabulary: int64 keys, each with a row
// of `dim` numbers and the float slots of at most one update rule. No key value
// is reserved. Thread-safe: any number of threads read at once; writers lock
// some or all stripes, so a key's row is never half written, and a batch of
// writes or removals never half seen (kKeysAtOnce). Updates (Sink) are seen row
// by row. Batch calls take keys in any order, repeated or not; in Upsert the
// last row of a repeated key wins. A failed call does not change the table.
//
// In a table of bounded size one batch of writes runs at a time; it must not
// have more distinct keys than the bound (InvalidArgument), and evicts none of
// them. Import is the exception: of too many rows, the last ones written stay.
//
// Memory: per key the row (row_layout.h) and at most 24 more bytes. Rows are in
// slabs on huge pages and never move when the table grows.
//
// Locks. Readers hold the locks of all stripes, shared. Writes of rows and
// removals hold those of all stripes that they write to, exclusively; updates
// lock one stripe at a time. Writes of rows and updates (Sink) hold batches_,
// shared, from the reservation of room to the last write; removals need not.
// Clear, SetSlots, DropSlots and SetSeed hold batches_ and then all stripes,
// exclusively. In a table of bounded size all writers, updates and removals
// included, hold batches_ exclusively: nothing else changes while a batch
// counts its new keys, evicts and writes. whole() comes before batches_,
// batches_ before the turn (TableStripes), the turn before stripes, and stripes
// are locked in order, so calls cannot deadlock. No thread locks a lock that it
// holds already: a reader would wait behind a writer who waits for that reader.
//
// The methods are in embedding_table.cc (creation, sizes, slots),
// table_read.cc, table_write.cc, table_write_in_order.cc, table_update.cc
// (training), table_policies.cc, table_survey.cc and table_snapshot.cc.
class EmbeddingTable {
 public:
  struct Options {
    int64_t dim = 0;  // 0: keys without a value.
    KeyKind keys = KeyKind::kInt64;
    ValueType type;
    int64_t meta_words = 0;        // Kept behind value and slots of each row.
    int64_t initial_capacity = 0;  // Keys to make room for at once.
    std::string admission;         // See AdmissionPolicy::Parse; "": all keys.
    std::string eviction;          // See EvictionPolicy::Parse; "": none.
    // The most keys: an insert into a full table evicts sampled rows. 0: no
    // bound; else `eviction` must be set.
    int64_t max_size = 0;
    // The number that all columns of a missing key read, in place of its
    // initial row.
    std::optional<float> missing_value;
    // Whether trained and added values are rounded up or down at random
    // (value_type.h); float16 and bfloat16 rows only.
    bool stochastic_rounding = false;
  };

  // InvalidArgument: a policy that cannot be read or, with `max_size`, admits
  // keys by counters that they share; dim < 0, meta_words < 0 or
  // initial_capacity < 0, initial rows of another width or type, or stochastic
  // rounding to another type than halves.
  // ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<EmbeddingTable>> Create(
      const Options& options, InitialRows initial_rows);

  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  // Readers of the whole content hold this lock shared; code that replaces the
  // content in several calls holds it exclusively. See LockWhole.
  SharedMutex& whole() const ABSL_LOCK_RETURNED(whole_) { return whole_; }

  int64_t dim() const { return dim_; }
  KeyKind key_kind() const { return key_kind_; }

  // The map from strings to int64 keys; null unless key_kind() is kString.
  StringKeys* strings() const { return strings_.get(); }

  ValueType type() const { return type_; }
  RowLayout layout() const;
  int64_t size() const;
  int64_t max_size() const { return max_size_; }  // 0: no bound.
  TableStats stats() const;
  TableUse use() const;  // Walks through the index; SurveyRows does not.
  SlotLayout slots() const;
  uint64_t seed() const;  // The seed of the initial rows.

  // The name of the eviction policy's notes (EvictionPolicy::notes); "" without
  // notes.
  absl::string_view notes() const {
    return touches_ ? eviction_->notes() : absl::string_view();
  }

  // Of a batch of at most so many keys, readers of many keys see all writes or
  // none; a larger one is written, and removed, in parts of so many, in order.
  static constexpr int64_t kKeysAtOnce = int64_t{1} << 17;

  // `values`, here and below: dim() numbers of type() for each key, as
  // TensorFlow lays them out.

  // values[i] = row of keys[i], or its initial row; exists[i] says which
  // (null: not asked). Inserts nothing.
  void LookupFrom(KeySource* keys, void* values, bool* exists,
                  Executor* executor) const;
  void Lookup(absl::Span<const int64_t> keys, void* values, bool* exists,
              Executor* executor) const {
    KeySpan span(keys);
    LookupFrom(&span, values, exists, executor);
  }

  // Writes the rows of `keys`; new keys get initial slots.
  absl::Status Upsert(absl::Span<const int64_t> keys, const void* values,
                      Executor* executor);

  // If exists[i] and the key is present: adds values[i] - old_values[i] to its
  // row (null: values[i]). If neither: inserts values[i]. Else ignores it,
  // since another writer came between. InvalidArgument if the type has no
  // addition.
  absl::Status Accum(absl::Span<const int64_t> keys, const void* values,
                     const void* old_values, const bool* exists,
                     Executor* executor);

  // The floats of a row that update rules change: value and slots.
  int64_t trained_width() const { return dim() + layout().slot_words(); }

  // Reads values and slots of `keys`; a missing key has the initial ones.
  // FailedPrecondition: the width is not trained_width(), the rows have another
  // rule's slots, or the type cannot be trained.
  absl::Status LookupTrained(absl::Span<const int64_t> keys,
                             const TrainedForm& form, float* rows,
                             Executor* executor) const;

  // Writes trained rows, or with `add` adds to them, each occurrence of a
  // repeated key; missing keys are inserted first. Errors as LookupTrained and
  // Upsert.
  absl::Status WriteTrained(absl::Span<const int64_t> keys,
                            const TrainedForm& form, const float* rows,
                            bool add, Executor* executor);

  // Missing keys are ignored.
  void Remove(absl::Span<const int64_t> keys, Executor* executor);

  // As Remove; counts the removed keys as evicted.
  void Evict(absl::Span<const int64_t> keys, Executor* executor);

  // Exports all keys at one moment, and the worth of their rows by `policy`, or
  // the table's policy if that is "": the lowest are evicted first. `allocate`
  // as for ExportKeys. InvalidArgument: a policy that cannot be parsed or that
  // needs meta words which the rows do not have.
  struct WorthBuffers {
    int64_t* keys;
    double* worth;
  };
  absl::Status ExportWorth(
      const std::string& policy,
      const std::function<absl::StatusOr<WorthBuffers>(int64_t n)>& allocate,
      Executor* executor) const;

  // The moment of the last batch of writes, and the second that it is now.
  Moment Now() const;

  // The worth, by the table's own policy, of n rows once they were imported
  // with these notes (Snapshot::Note); null where the policy notes nothing.
  // REQUIRES: the table has an eviction policy.
  void JudgeImport(const void* values, const uint32_t* notes, int64_t n,
                   const Moment& now, double* worth) const;

  // The `most` rows of the highest worth, by policies as for ExportWorth, the
  // highest first. InvalidArgument as there.
  struct WorthyKey {
    int64_t key;
    double worth;
  };
  absl::StatusOr<std::vector<WorthyKey>> FindTop(const std::string& policy,
                                                 int64_t most,
                                                 Executor* executor) const;

  // A sample of rows. Hashes spread the keys over the index, so the keys in the
  // first buckets of each stripe are a pseudo-random sample; it stays the same
  // as long as the index does not grow.
  struct Survey {
    std::vector<int64_t> keys;
    std::vector<double> norms;  // As SmallestNorm judges: -1 where one is NaN.
    std::vector<double> worth;  // By the table's own policy; empty without one.
    // True for a row whose slots differ from those of a new row; in a table
    // without slots, for one whose value differs from the key's initial row.
    std::vector<uint8_t> trained;

    int64_t size = 0;     // Keys of the table, at the moment of the survey.
    int64_t waiting = 0;  // As num_waiting().
    // Its probes are only those of the survey's keys.
    TableUse use;
  };

  // Surveys about `rows` rows, at most some hundred more per stripe, or all.
  Survey SurveyRows(int64_t rows, Executor* executor) const;

  // The number of keys that wait for admission, if it counts each key.
  int64_t num_waiting() const;

  // Sets known[i] where keys[i] has a row or waits for one.
  void IsKnown(absl::Span<const int64_t> keys, bool* known) const;

  // Adds keys that wait for admission, with the number of steps that saw each,
  // in [1, 2^24); ignores keys that have a row. Does nothing without an
  // admission policy. InvalidArgument: a number below 1; nothing is changed.
  // ResourceExhausted: some keys may have been added.
  absl::Status ImportWaiting(absl::Span<const int64_t> keys,
                             absl::Span<const int32_t> seen);

  // Replaces the notes of rows by those of Snapshot::Note, if the table has
  // notes; keys without a row are ignored. ResourceExhausted: nothing is
  // changed.
  absl::Status ImportNotes(absl::Span<const int64_t> keys,
                           absl::Span<const uint32_t> notes);

  // The counters of admission where keys share counters: a table has
  // `num_blocks` blocks of `block_bytes` bytes; none otherwise. Counters of two
  // tables with equal shapes mean the same.
  struct CountersShape {
    std::string kind;
    int64_t num_blocks = 0;
    int64_t block_bytes = 0;

    bool operator!=(const CountersShape& other) const {
      return kind != other.kind || num_blocks != other.num_blocks ||
             block_bytes != other.block_bytes;
    }
  };
  const CountersShape& counters_shape() const { return counters_shape_; }

  // Replaces a block. REQUIRES: it is one of those, of this size.
  void ImportCounters(int64_t block, absl::Span<const uint8_t> counters);

  // Removes all keys and returns the memory to the system.
  void Clear();

  // Clears with room for `keys` keys (at most the bound), and reuses the
  // memory: a system may take seconds per GB of new memory. ResourceExhausted:
  // the table has been cleared.
  absl::Status ClearFor(int64_t keys);

  // Adds slots to every row, slab by slab, never with a second copy of the
  // table. With the same owner and names again, rows stay, and new rows get
  // these initial values. FailedPrecondition: the rows have another rule's
  // slots; InvalidArgument: rows of this type cannot be trained.
  absl::Status SetSlots(const SlotLayout& layout);

  // Removes the slots from every row; values and notes stay. Then another rule
  // may set its slots. ResourceExhausted: nothing is changed.
  absl::Status DropSlots();

  // The number of calls of DropSlots. Code that has read the slots and makes a
  // sink reads them again if this number has changed.
  uint32_t drops() const { return drops_; }

  // Sets the seed of the initial rows of missing keys.
  void SetSeed(uint64_t seed);

  // Full rows, here and below, are rows in their memory layout: this many
  // words, by row_layout.h; with float32 and no meta words (1 + slots) * dim
  // floats.
  int64_t full_width() const { return layout().width(); }

  // The table at one moment. It holds read locks on all stripes, so writers
  // wait and readers do not; its owner must not call methods that lock the
  // table. Borrows the table.
  class Snapshot {
   public:
    explicit Snapshot(const EmbeddingTable& table);

    int64_t size() const;
    uint64_t seed() const;
    const SlotLayout& slots() const;
    const RowLayout& layout() const;

    // Returns the note on a full row, as EvictionPolicy::Saved. REQUIRES: the
    // table's notes() are not "".
    uint32_t Note(const float* full_row) const;

    // Calls visit(keys, full rows) for chunks of `chunk_rows` keys, the last of
    // fewer, one after the other until all were seen or visit returns an error,
    // which is passed on. With an executor one thread copies the next chunk's
    // rows while another visits this one: it may be any. ResourceExhausted: no
    // memory for two chunks. InvalidArgument: chunk_rows < 1.
    using Visitor = std::function<absl::Status(absl::Span<const int64_t> keys,
                                               const float* full_rows)>;
    absl::Status Visit(int64_t chunk_rows, const Visitor& visit,
                       Executor* executor) const;

    // Calls visit(first, keys, rows) for all keys, some hundred at a time, from
    // as many threads as there are: rows[i] is the full row of keys[i], which
    // is key `first` + i of the table's size(), in no particular order.
    using BlockVisitor =
        std::function<void(int64_t first, absl::Span<const int64_t> keys,
                           const float* const* full_rows)>;
    void VisitBlocks(const BlockVisitor& visit, Executor* executor) const;

    // As ImportWaiting takes them, in chunks of `chunk_keys`, the last one of
    // fewer.
    using WaitingVisitor = std::function<absl::Status(
        absl::Span<const int64_t> keys, absl::Span<const int32_t> seen)>;
    int64_t num_waiting() const;
    absl::Status VisitWaiting(int64_t chunk_keys,
                              const WaitingVisitor& visit) const;

    // A block of the table's counters_shape().
    absl::Span<const uint8_t> counters(int64_t block) const;

   private:
    const EmbeddingTable& table_;
    const SharedLocks locks_;
    const Moment now_;
  };
  std::unique_ptr<Snapshot> Freeze() const;

  // Exports all keys at one moment. `allocate(n)` returns the memory for n
  // keys; it is called once while all stripes are read-locked, so it must not
  // call this table.
  absl::Status ExportKeys(
      const std::function<absl::StatusOr<int64_t*>(int64_t n)>& allocate,
      Executor* executor) const;

  // Sets exists[i] to whether keys[i] is present. Reads no rows.
  void Contains(absl::Span<const int64_t> keys, bool* exists,
                Executor* executor) const;

  // Upsert of full rows of `width` words. FailedPrecondition where the table's
  // rows have another width, as after SetSlots. A meta word is a note as
  // Snapshot::Note gives it, 0 for a row that counts as touched once, now. No
  // step of the table's clock.
  absl::Status Import(absl::Span<const int64_t> keys, int64_t width,
                      const float* full_rows, Executor* executor);

  // For grouped lookups: the source holds read locks on all stripes.
  std::unique_ptr<RowSource> Read() const;

  // For grouped updates. The sink borrows the table. Where slots are dropped
  // before it holds the table, its hold is refused (FailedPrecondition).
  std::unique_ptr<RowSink> Write();

 private:
  class Source;        // table_read.cc
  class Sink;          // table_update.cc
  class Bound;         // table_bound.h
  class OrderedWrite;  // table_write_in_order.cc
  struct RowWrites;    // row_writes.h
  struct GroupBlock;   // table_write.cc

  // The rows of the store have the layout's width.
  EmbeddingTable(const RowLayout& layout, KeyKind key_kind,
                 InitialRows initial_rows, std::unique_ptr<RowStore> store);

  // Create calls these once, before the table is used. ResourceExhausted,
  // InvalidArgument.
  absl::Status ReserveKeys(int64_t keys);
  absl::Status SetAdmission(const std::string& policy, int64_t max_size);
  void SetEviction(std::unique_ptr<EvictionPolicy> policy, int64_t max_size);

  absl::Status ClearRowsFor(int64_t keys);

  int64_t CountWaiting() const ABSL_SHARED_LOCKS_REQUIRED(stripes_);
  void ForEachWaiting(const AdmissionFilter::WaitingVisitor& visit) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_);

  // The room that a batch has reserved.
  struct Reservations {
    Reservations() { keys.fill(-1); }

    std::array<int64_t, kNumStripes> keys;  // By stripe; -1: nothing.
    std::array<int, kNumStripes> order;     // Stripes that may grow come first.
    MemoryPromise memory;                   // For new rows.
  };

  absl::Status WriteRows(absl::Span<const int64_t> keys, RowWrites writes,
                         Executor* executor);
  absl::Status WriteBounded(absl::Span<const int64_t> keys, RowWrites writes,
                            Executor* executor);
  absl::Status PinWrites(Bound* bound, RowWrites* writes,
                         absl::Span<const int64_t>* keys) const;
  static absl::Status NoMemoryToPin(int64_t keys);

  // FailedPrecondition where slots were dropped since there were `drops`.
  // REQUIRES: the caller holds batches_.
  absl::Status CheckDrops(uint32_t drops) const;
  // Writes a batch all of whose rows are there, if such a batch is faster this
  // way; false: nothing was done.
  bool WriteInOrder(absl::Span<const int64_t> keys, RowWrites writes,
                    Executor* executor) ABSL_SHARED_LOCKS_REQUIRED(batches_);
  // A table of bounded size is held by `bound`.
  absl::Status WriteHeld(absl::Span<const int64_t> keys, RowWrites writes,
                         Bound* bound, Executor* executor)
      ABSL_SHARED_LOCKS_REQUIRED(batches_);
  int64_t value_bytes() const { return dim_ * type_.size(); }
  // Of a stripe, where a batch needs scratch memory: two rows.
  int64_t ScratchFloats() const ABSL_SHARED_LOCKS_REQUIRED(stripes_.any()) {
    return 2 * (dim_ + layout_.slot_words());
  }

  bool Streams(const RowWrites& writes, int64_t n) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  // `locks`: those of the batch, held or not.
  absl::Status ReserveGroups(const KeyPartition& partition,
                             const RowWrites& writes, const Bound* bound,
                             int64_t fresh_bytes, Executor* executor,
                             StripeSetLocks* locks, Reservations* reservations)
      ABSL_SHARED_LOCKS_REQUIRED(batches_);
  int PromiseFromRoom(const KeyPartition& partition,
                      Reservations* reservations);
  absl::StatusOr<int64_t> ReserveCounted(const KeyPartition& partition,
                                         const RowWrites& writes,
                                         const Bound* bound, int num_stripes,
                                         Executor* executor,
                                         Reservations* reservations)
      ABSL_SHARED_LOCKS_REQUIRED(batches_);
  void ReleaseGroups(Reservations* reservations);
  absl::Status ReserveMissing(const KeyGroup& group, const RowWrites& writes,
                              int64_t leaving, TableStripe* stripe,
                              int64_t* reserved, int64_t* fresh_rows);
  static int64_t CountMissing(const KeyGroup& group, const RowWrites& writes,
                              const TableStripe& stripe)
      ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex());
  // `written`: for policies that count, room for an address a key; else null.
  // Leaves `locks` unlocked.
  void WriteParts(const KeyPartition& partition, const RowWrites& writes,
                  float** written, Executor* executor, StripeSetLocks* locks,
                  const Reservations& reservations);
  // Returns how many rows there are in `written`.
  int64_t WriteGroup(const KeyGroup& group, const RowWrites& writes,
                     float** written, TableStripe* stripe)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex())
          ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  void BeginBlock(const KeyGroup& group, int64_t begin,
                  const TableStripe& stripe, GroupBlock* block) const
      ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex());
  void FindOrMakeRows(const RowWrites& writes, TableStripe* stripe,
                      GroupBlock* block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex())
          ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  int64_t FloatsToFetch(const RowWrites& writes) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  // Return how many rows have a NaN, and ask for the homes of the next block.
  // By the kernel: upserts and accums of float32.
  int64_t WriteByKernel(const RowWrites& writes, const GroupBlock& block,
                        const GroupBlock& next) const;
  int64_t WriteRowByRow(const RowWrites& writes, const GroupBlock& block,
                        const GroupBlock& next) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  void AskForGiven(const RowWrites& writes, uint32_t position) const;
  void NoteWrite(const RowWrites& writes, float* row) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  // `position`: of the key in its batch.
  void WriteTrainedRow(const RowWrites& writes, uint32_t position, int64_t key,
                       bool is_new, float* row) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  void AddValue(const RowWrites& writes, uint32_t position, int64_t key,
                float* row) const;

  std::unique_lock<SharedMutex> HoldIfBounded();
  // Return how many keys were there.
  int64_t RemoveKeys(absl::Span<const int64_t> keys, Executor* executor);
  int64_t EraseUnsorted(absl::Span<const int64_t> keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripes_);
  int64_t EraseGroup(const KeyGroup& group, TableStripe* stripe)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex());

  Moment Tick();  // Begins a batch of writes.

  // REQUIRES: the lock of the row's stripe.
  double RowWorth(const EvictionPolicy& policy, uint32_t row,
                  const Moment& now) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());

  // The policy of this text, or where it is "" the table's own, into *judge;
  // `parsed` owns the former. InvalidArgument as ExportWorth.
  absl::Status FindJudge(const std::string& policy,
                         std::unique_ptr<EvictionPolicy>* parsed,
                         const EvictionPolicy** judge) const;

  // The use of the table but for its probes, which a walk has to count.
  TableUse CountUse() const ABSL_SHARED_LOCKS_REQUIRED(stripes_);

  // `initial`: room for a value.
  bool IsTrained(int64_t key, const float* row, void* initial) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  // Some rows of a locked stripe, at least so many or all.
  void SurveyStripe(const HashIndex& index, int64_t rows, const Moment& now,
                    Survey* survey) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());

  // The keys of the next buckets of a locked stripe from `begin` on, and what
  // their rows are worth. Returns how many there are.
  static constexpr int64_t kJudgedBuckets = 32;
  static constexpr int64_t kJudgedKeys =
      kJudgedBuckets * HashIndex::kBucketPlaces;
  int64_t JudgeRows(const HashIndex& index, int64_t begin,
                    const EvictionPolicy& policy, const Moment& now,
                    WorthBuffers to) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());

  template <int64_t kBytes>
  void LookupRange(const StripeIndexes& indexes, const KeySource& keys,
                   int64_t first, int64_t last, char* values, bool* exists,
                   bool streams) const ABSL_SHARED_LOCKS_REQUIRED(stripes_)
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());

  TableStripe& stripe(uint64_t hash) { return stripes_[StripeOf(hash)]; }

  // The rows that missing keys read.
  const InitialRows& missing_rows() const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any()) {
    return missing_rows_.has_value() ? *missing_rows_ : initial_rows_;
  }

  // How the batch that began at `now` rounds what it trains or adds.
  RowRounding Rounding(const Moment& now) const {
    if (!rounds_by_chance_) return RowRounding(type_);
    return RowRounding(type_, seed(), now.step);
  }

  // The eviction policy's word of a row. REQUIRES, here and below: touches_.
  uint32_t Note(const float* row) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any()) {
    uint32_t word;
    std::memcpy(&word, row + layout_.width() - 1, sizeof(word));
    return word;
  }
  void SetNote(uint32_t word, float* row) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any()) {
    std::memcpy(row + layout_.width() - 1, &word, sizeof(word));
  }

  // Notes in a row that it is written.
  void Touch(const Moment& now, float* row) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any()) {
    SetNote(eviction_->Touch(Note(row), now), row);
  }

  // Makes an imported note the table's own.
  void TakeNote(const Moment& now, float* row) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any()) {
    SetNote(eviction_->Restored(Note(row), now), row);
  }

  // FailedPrecondition where such rows are not so.
  absl::Status CheckTrained(const TrainedForm& form) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  absl::Status CheckFullWidth(int64_t width) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());
  void ReadTrained(const float* row, float* to) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any());

  // Writes what follows the value in a new row: initial slots, meta words of 0.
  void FillNewTail(float* row) const
      ABSL_SHARED_LOCKS_REQUIRED(stripes_.any()) {
    if (new_tail_.empty()) return;
    CopyRow(new_tail_.data(), row + layout_.slots_begin(), new_tail_.size());
  }

  // Added to once for some hundreds of keys.
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};

    void Add(int64_t n) {
      if (n != 0) value.fetch_add(n, std::memory_order_relaxed);
    }
  };

  mutable SharedMutex whole_;
  mutable SharedMutex batches_ ABSL_ACQUIRED_AFTER(whole_);
  TableStripes stripes_;

  // Set by Create.
  const int64_t dim_;
  const KeyKind key_kind_;
  const ValueType type_;
  const std::unique_ptr<RowStore> store_;
  std::unique_ptr<StringKeys> strings_;       // Null unless keys are strings.
  std::unique_ptr<EvictionPolicy> eviction_;  // Or null.
  bool admits_all_ = true;                    // No stripe has a filter.
  CountersShape counters_shape_;              // A block for each filter.
  int64_t max_size_ = 0;                      // 0: no bound.
  bool touches_ = false;  // The last word of a row is the eviction policy's.
  bool rounds_by_chance_ = false;            // To halves.
  std::optional<InitialRows> missing_rows_;  // In place of initial_rows_.

  // The layout of rows, and what new rows hold.
  // A thread that holds batches_ may read both, too.
  RowLayout layout_ ABSL_GUARDED_BY(stripes_.any());
  SlotLayout slots_ ABSL_GUARDED_BY(stripes_.any());
  std::vector<float> new_tail_ ABSL_GUARDED_BY(stripes_.any());
  InitialRows initial_rows_ ABSL_GUARDED_BY(stripes_.any());

  int64_t hand_ ABSL_GUARDED_BY(batches_) = 0;  // See Bound.
  std::atomic<uint32_t> steps_{0};
  std::atomic<uint32_t> drops_{0};
  mutable Counter hits_, misses_;
  Counter admitted_, refused_, evicted_, nan_rows_;
};

// Makes snapshots of several tables at one moment, when it returns; see Freeze.
inline std::vector<std::unique_ptr<EmbeddingTable::Snapshot>> FreezeAll(
    absl::Span<const EmbeddingTable* const> tables) {
  std::vector<std::unique_ptr<EmbeddingTable::Snapshot>> frozen;
  for (const EmbeddingTable* table : tables) frozen.push_back(table->Freeze());
  return frozen;
}

// Locks EmbeddingTable::whole() of several tables, in the order of addresses,
// so that calls cannot deadlock. REQUIRES: the caller holds no lock of the
// tables.
template <typename Lock>
std::vector<Lock> LockWhole(absl::Span<const EmbeddingTable* const> tables) {
  std::vector<Lock> locks;
  const std::set<const EmbeddingTable*> sorted(tables.begin(), tables.end());
  for (const EmbeddingTable* table : sorted) locks.emplace_back(table->whole());
  return locks;
}

// The locks of readers, and of writers, of whole tables.
using WholeTables = std::vector<std::shared_lock<SharedMutex>>;
using ReplacedTables = std::vector<std::unique_lock<SharedMutex>>;

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_EMBEDDING_TABLE_H_
