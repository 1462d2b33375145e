#ifndef TFEMBED_CORE_EMBEDDING_TABLE_H_
#define TFEMBED_CORE_EMBEDDING_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/initial_rows.h"
#include "cc/core/key_source.h"
#include "cc/core/row_layout.h"
#include "cc/core/rows.h"
#include "cc/core/string_keys.h"
#include "cc/core/support/executor.h"

namespace tfembed {

// Slots kept in each row beside its value, as an update rule asks for them.
struct SlotLayout {
  std::string owner;                  // The update rule's name, e.g. "adagrad".
  std::vector<std::string> names;     // E.g. {"accumulators"}.
  std::vector<float> initial_values;  // One per slot.
  SlotSet row_wise = 0;               // Those of one float a row, not `dim`.
};

// The most values of a row.
inline constexpr int64_t kMaxDim = int64_t{1} << 30;

// InvalidArgument: rows of `type` cannot have such slots.
absl::Status CheckSlotLayout(const SlotLayout& layout, ValueType type);

// What the keys of a table are outside; inside they are int64.
enum class KeyKind : uint8_t { kInt64, kInt32, kString };

// What a table holds and takes, in keys and bytes.
struct TableStats {
  int64_t size = 0;         // Keys.
  int64_t capacity = 0;     // Keys that fit before the index grows.
  int64_t index_bytes = 0;  // The hash index, keys included.
  int64_t row_bytes = 0;    // Slabs: values, slots, free rows.
};

// How a table was used since it was made, and what it takes by kind.
struct TableUse {
  int64_t hits = 0;      // Keys of lookups that were there,
  int64_t misses = 0;    // and that were not.
  int64_t admitted = 0;  // Keys that training steps inserted,
  int64_t refused = 0;   // and that they did not: not admitted yet.
  int64_t evicted = 0;   // Keys that Evict removed.
  int64_t nan_rows = 0;  // Rows with a NaN that were upserted.

  int64_t value_bytes = 0;  // Of rows in use; the rest of the slabs is free.
  int64_t slot_bytes = 0;
  int64_t meta_bytes = 0;
  int64_t policy_bytes = 0;  // Beside rows and index.

  int64_t places = 0;         // Of keys in the index, free ones included.
  int64_t probes = 0;         // Buckets read to find each key once.
  int64_t longest_probe = 0;  // Of one key.
};

// One shard of a table without a fixed vocabulary: int64 keys, each with a row
// of `dim` numbers and the slots of at most one update rule, floats. No key
// value is reserved. Thread-safe: any number of threads read at once; writers
// lock a part of the keys or all, so a key's row is whole at any moment. Batch
// calls take keys in any order, repeated or not; with repeats the last one wins
// in Upsert. A failed call leaves the table as it was.
//
// In a table of bounded size one batch of writes runs at a time; it must not
// have more distinct keys than the bound (InvalidArgument), and evicts none of
// them. Import is the exception: of too many rows the last ones written stay.
//
// Memory: the row (row_layout.h) and at most 24 bytes beside it per key. Rows
// lie in slabs on huge pages and never move when the table grows.
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
    // Keys that are never exceeded: what an insert has no room for it makes by
    // eviction, sampled. 0: no bound; else `eviction` must be there.
    int64_t max_size = 0;
    // What all columns of missing keys read in place of their initial row.
    std::optional<float> missing_value;
    // Whether what is trained or added is rounded up or down by chance
    // (row_rounding.h); float16 and bfloat16 rows only.
    bool stochastic_rounding = false;
  };

  // InvalidArgument: a policy that cannot be read or, with `max_size`, admits
  // keys by counters that they share; dim < 0, meta_words < 0 or
  // initial_capacity < 0, initial rows of another width or type, or stochastic
  // rounding to another type than halves.
  // ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<EmbeddingTable>> Create(
      const Options& options, InitialRows initial_rows);

  virtual ~EmbeddingTable() = default;

  // Held, shared, by who takes all that the table holds; exclusively by who
  // replaces it in several calls. See whole_tables.h.
  std::shared_mutex& whole() const { return whole_; }

  virtual int64_t dim() const = 0;
  virtual KeyKind key_kind() const = 0;

  // Which int64 stands for a string; null unless key_kind() is kString.
  virtual StringKeys* strings() const = 0;

  virtual ValueType type() const = 0;
  virtual RowLayout layout() const = 0;
  virtual int64_t size() const = 0;
  virtual int64_t max_size() const = 0;  // 0: no bound.
  virtual TableStats stats() const = 0;
  virtual TableUse use() const = 0;  // Walks through the index.
  virtual SlotLayout slots() const = 0;
  virtual uint64_t seed() const = 0;  // Of the initial rows.

  // What the eviction policy notes of each row (EvictionPolicy::notes), "" for
  // nothing.
  virtual absl::string_view notes() const = 0;

  // `values`, here and below: dim() numbers of type() for each key, as
  // TensorFlow lays them out.

  // values[i] = row of keys[i], or its initial row; exists[i] says which
  // (null: not asked). Inserts nothing.
  virtual void LookupFrom(KeySource* keys, void* values, bool* exists,
                          Executor* executor) const = 0;
  void Lookup(absl::Span<const int64_t> keys, void* values, bool* exists,
              Executor* executor) const {
    KeySpan span(keys);
    LookupFrom(&span, values, exists, executor);
  }

  // Writes the rows of `keys`; new keys get initial slots.
  virtual absl::Status Upsert(absl::Span<const int64_t> keys,
                              const void* values, Executor* executor) = 0;

  // Where exists[i] and the key is there: adds values[i] - old_values[i] to its
  // row (null: values[i]). Where neither: inserts values[i]. Else ignores it
  // (someone came between). InvalidArgument where the type has no addition.
  virtual absl::Status Accum(absl::Span<const int64_t> keys, const void* values,
                             const void* old_values, const bool* exists,
                             Executor* executor) = 0;

  // What update rules move: value and slots as (1 + slots) * dim floats.
  int64_t trained_width() const { return dim() + layout().slot_words(); }

  // The trained rows of `keys`, of a missing key the initial ones.
  // FailedPrecondition: `width` is not trained_width(), or the type is none
  // that can be trained.
  virtual absl::Status LookupTrained(absl::Span<const int64_t> keys,
                                     int64_t width, float* rows,
                                     Executor* executor) const = 0;

  // Writes trained rows, or with `add` adds to them, each occurrence of a
  // repeated key; missing keys are inserted first. Errors as LookupTrained and
  // Upsert.
  virtual absl::Status WriteTrained(absl::Span<const int64_t> keys,
                                    int64_t width, const float* rows, bool add,
                                    Executor* executor) = 0;

  // Keys that are not there are ignored.
  virtual void Remove(absl::Span<const int64_t> keys, Executor* executor) = 0;

  // As Remove; counts the keys that were there as evicted.
  virtual void Evict(absl::Span<const int64_t> keys, Executor* executor) = 0;

  // All keys of one moment and what their rows are worth by `policy`, or where
  // that is "" by the table's own: the lowest go first. `allocate` as for
  // ExportKeys. InvalidArgument: a policy that cannot be read or that needs
  // words which the rows do not have.
  struct WorthBuffers {
    int64_t* keys;
    double* worth;
  };
  virtual absl::Status ExportWorth(
      const std::string& policy,
      const std::function<absl::StatusOr<WorthBuffers>(int64_t n)>& allocate,
      Executor* executor) const = 0;

  // Keys that admission keeps waiting, where it counts each by itself.
  virtual int64_t num_waiting() const = 0;

  // Which keys have a row or wait for one.
  virtual void IsKnown(absl::Span<const int64_t> keys, bool* known) const = 0;

  // Has keys wait that training has seen in so many steps, each below 2^24;
  // those that have a row do not. Nothing happens without an admission policy.
  // InvalidArgument: a number below 1, and nothing is changed;
  // ResourceExhausted: some may wait.
  virtual absl::Status ImportWaiting(absl::Span<const int64_t> keys,
                                     absl::Span<const int32_t> seen) = 0;

  // Replaces the notes of rows, as Snapshot::Note gives them, where there are
  // any; keys without a row are ignored. ResourceExhausted: nothing is changed.
  virtual absl::Status ImportNotes(absl::Span<const int64_t> keys,
                                   absl::Span<const uint32_t> notes) = 0;

  // What admission has counted where keys share counters: a table has
  // `num_blocks` blocks of `block_bytes` bytes; none otherwise. Those of two
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
  virtual CountersShape counters_shape() const = 0;

  // Replaces a block. REQUIRES: it is one of those, of this size.
  virtual void ImportCounters(int64_t block,
                              absl::Span<const uint8_t> counters) = 0;

  // Gives the memory back to the system.
  virtual void Clear() = 0;

  // The same, with room for `keys` keys (no more than the bound), in the memory
  // that is there as far as it goes: a system may take seconds a GB for what it
  // hands out anew. ResourceExhausted: the table has been cleared.
  virtual absl::Status ClearFor(int64_t keys) = 0;

  // Lays slots out in every row, present rows included (slab by slab, never a
  // second copy of the table). Same owner and names again: rows stay, and
  // new ones start from these initial values. FailedPrecondition where another
  // rule's slots are there; InvalidArgument where rows of this type cannot be
  // trained.
  virtual absl::Status SetSlots(const SlotLayout& layout) = 0;

  // Draws the initial rows of missing keys from another seed.
  virtual void SetSeed(uint64_t seed) = 0;

  // Full rows, here and below, are rows as they lie in memory: this many words,
  // by row_layout.h; with float32 and no meta words (1 + slots) * dim floats.
  int64_t full_width() const { return layout().width(); }

  // The table as of one moment: read locks on all stripes while it lives, so
  // writers wait and readers do not; whoever holds it must not ask the table
  // itself for what changes. Borrows the table.
  class Snapshot {
   public:
    virtual ~Snapshot() = default;

    virtual int64_t size() const = 0;
    virtual uint64_t seed() const = 0;
    virtual const SlotLayout& slots() const = 0;
    virtual const RowLayout& layout() const = 0;

    // What is noted of a full row, as EvictionPolicy::Saved. REQUIRES: the
    // table's notes() are not "".
    virtual uint32_t Note(const float* full_row) const = 0;

    // Calls visit(keys, full rows) for chunks of `chunk_rows` keys, the last of
    // fewer, one after the other until all were seen or visit returns an error,
    // which is passed on. With an executor one thread copies the next chunk's
    // rows while another visits this one: it may be any. ResourceExhausted: no
    // memory for two chunks. InvalidArgument: chunk_rows < 1.
    using Visitor = std::function<absl::Status(absl::Span<const int64_t> keys,
                                               const float* full_rows)>;
    virtual absl::Status Visit(int64_t chunk_rows, const Visitor& visit,
                               Executor* executor) const = 0;

    // Calls visit(first, keys, rows) for all keys, some hundred at a time, from
    // as many threads as there are: rows[i] is the full row of keys[i], which
    // is key `first` + i of the table's size(), in no particular order.
    using BlockVisitor =
        std::function<void(int64_t first, absl::Span<const int64_t> keys,
                           const float* const* full_rows)>;
    virtual void VisitBlocks(const BlockVisitor& visit,
                             Executor* executor) const = 0;

    // As ImportWaiting takes them, in chunks of `chunk_keys`, the last one of
    // fewer.
    using WaitingVisitor = std::function<absl::Status(
        absl::Span<const int64_t> keys, absl::Span<const int32_t> seen)>;
    virtual int64_t num_waiting() const = 0;
    virtual absl::Status VisitWaiting(int64_t chunk_keys,
                                      const WaitingVisitor& visit) const = 0;

    // A block of the table's counters_shape().
    virtual absl::Span<const uint8_t> counters(int64_t block) const = 0;
  };
  virtual std::unique_ptr<Snapshot> Freeze() const = 0;

  // All keys of one moment. `allocate(n)`, called once, with every stripe
  // read-locked, so it must not ask this table, returns where to write n keys.
  virtual absl::Status ExportKeys(
      const std::function<absl::StatusOr<int64_t*>(int64_t n)>& allocate,
      Executor* executor) const = 0;

  // exists[i] says whether keys[i] is there. Touches no row.
  virtual void Contains(absl::Span<const int64_t> keys, bool* exists,
                        Executor* executor) const = 0;

  // Upsert of full rows of `width` words. FailedPrecondition where the table's
  // rows have another width, as after SetSlots. A meta word is a note as
  // Snapshot::Note gives it, 0 for a row that counts as touched once, now. No
  // step of the table's clock.
  virtual absl::Status Import(absl::Span<const int64_t> keys, int64_t width,
                              const float* full_rows, Executor* executor) = 0;

  // For grouped lookups: read locks on all stripes while it lives.
  virtual std::unique_ptr<RowSource> Read() const = 0;

  // For grouped updates. The sink borrows the table.
  virtual std::unique_ptr<RowSink> Write() = 0;

 private:
  mutable std::shared_mutex whole_;
};

// Several tables as of one moment, that of its return; see Freeze.
inline std::vector<std::unique_ptr<EmbeddingTable::Snapshot>> FreezeAll(
    absl::Span<const EmbeddingTable* const> tables) {
  std::vector<std::unique_ptr<EmbeddingTable::Snapshot>> frozen;
  for (const EmbeddingTable* table : tables) frozen.push_back(table->Freeze());
  return frozen;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_EMBEDDING_TABLE_H_
