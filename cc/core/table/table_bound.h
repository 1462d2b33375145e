#ifndef TFEMBED_CORE_TABLE_TABLE_BOUND_H_
#define TFEMBED_CORE_TABLE_TABLE_BOUND_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "cc/core/table/embedding_table.h"

namespace tfembed {

// A batch's hold on a table of bounded size: it holds `batches_` exclusively
// from Pin to its destruction.
//
// Rows are evicted by sampling. A clock hand cycles through all buckets of all
// stripes, and each time takes the next 8 rows per row to evict (or all rows,
// if there are fewer), except those of the batch; the rows of the lowest worth
// among them are evicted. Pin chooses the rows and MakeRoom evicts them, so
// that the batch can reserve all other memory, and fail, in between. Buckets
// are in the order of salted hashes, so neighbours are unrelated, and the hand
// reaches every row.
//
// The hand visits all stripes in turn, one bucket of each. If it went stripe by
// stripe, a few stripes would lose rows while the others grow: their indexes
// and rows then took up to three times the memory of the bound. If stripes
// still lose or gain keys, the freed rows are moved to the stripes with new
// keys: a table that always had a bound has no more rows than its bound.
class EmbeddingTable::Bound final : public TableHold {
 public:
  // `trains`: whether the table's admission policy decides on new keys.
  Bound(EmbeddingTable* table, bool trains)
      : table_(*table), trains_(trains), drops_(table->drops()) {}
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
  ~Bound() override { table_.store_->Withdraw(promised_); }

  uintptr_t order() const override {
    return reinterpret_cast<uintptr_t>(&table_);
  }
  bool is_bounded() const override { return true; }
  absl::Status Pin(absl::Span<const int64_t> ids) override {
    return Pin(ids, ids);
  }
  // The same, for a batch that inserts only some of its keys where missing.
  // ResourceExhausted leaves the table as it was, here as above.
  absl::Status Pin(absl::Span<const int64_t> keys,
                   absl::Span<const int64_t> inserts);
  void MakeRoom() override;

  // How many keys of a stripe MakeRoom is going to evict.
  int64_t leaving(int stripe) const { return leaving_[stripe]; }

  // Whether Pin was called, which has the store promise all rows.
  bool is_held() const { return hold_.owns_lock(); }

  // How many more places in the index up to `keys` distinct keys of a stripe
  // need. Before Pin: all of them.
  int64_t Places(int stripe, int64_t keys) const;

 private:
  // A key, in the order of hashes.
  struct Id {
    uint64_t hash;
    int64_t key;

    bool operator<(const Id& other) const { return hash < other.hash; }
    bool operator==(const Id& other) const { return hash == other.hash; }
  };
  struct Candidate {
    double worth;  // Since Judge.
    int64_t key;
    uint32_t row;
  };
  class PinnedFilter;
  using Counts = std::array<int64_t, kNumStripes>;

  // Throws std::bad_alloc.
  absl::Status TryPin(absl::Span<const int64_t> keys,
                      absl::Span<const int64_t> inserts);

  static std::vector<Id> Distinct(absl::Span<const int64_t> keys);
  Counts CountNew(const std::vector<Id>& ids) const;
  void ChooseLeaving(int64_t new_keys);
  absl::Status AskForMemory(int64_t fresh_bytes);
  std::vector<Candidate> Sample(int64_t wanted);
  // Adds the keys of buckets [begin, end) of a stripe, and asks for their rows.
  void AddCandidates(const TableStripe& stripe, int64_t begin, int64_t end,
                     const PinnedFilter& filter,
                     std::vector<Candidate>* to) const;
  // Sets the worth of those from `begin` on; returns how many there are.
  size_t Judge(const Moment& now, size_t begin,
               std::vector<Candidate>* sample) const;
  void DealRows();

  EmbeddingTable& table_;
  const bool trains_;
  const uint32_t drops_;  // When the batch began.
  std::unique_lock<SharedMutex> hold_;
  std::vector<Id> pinned_;
  Counts new_ = {};       // Keys that the batch inserts.
  int64_t promised_ = 0;  // Rows, by the store.
  MemoryPromise memory_;  // For these.
  Counts leaving_ = {};
  std::vector<int64_t> leaving_keys_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_TABLE_BOUND_H_
