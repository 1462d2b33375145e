#ifndef TFEMBED_CORE_TABLE_BOUND_H_
#define TFEMBED_CORE_TABLE_BOUND_H_

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "cc/core/striped_table.h"

namespace tfembed {

// A batch's hold on a table of bounded size: `batches_`, exclusive, from Pin to
// the end of its life.
//
// Rows are evicted by sampling. A hand goes round all buckets of all stripes,
// and each time takes the next 8 rows for every one that has to go (all rows
// where there are fewer), without those of the batch; the rows of the lowest
// worth among them go. Buckets are in the order of hashes, so that neighbours
// have nothing in common, and every row's turn comes.
class StripedTable::Bound final : public BatchBound {
 public:
  // `trains`: whether the table's admission policy decides on new keys.
  Bound(StripedTable* table, bool trains) : table_(*table), trains_(trains) {}

  uintptr_t order() const override {
    return reinterpret_cast<uintptr_t>(&table_);
  }
  absl::Status Pin(absl::Span<const int64_t> ids) override;
  void MakeRoom() override { MakeRoomFor(CountNew(pinned_)); }

  // A key, in the order of hashes.
  struct Id {
    uint64_t hash;
    int64_t key;

    bool operator<(const Id& other) const { return hash < other.hash; }
    bool operator==(const Id& other) const { return hash == other.hash; }
  };
  static std::vector<Id> Distinct(absl::Span<const int64_t> keys);

  // How many of `ids` the batch would insert.
  int64_t CountNew(const std::vector<Id>& ids) const;
  void MakeRoomFor(int64_t new_keys);  // REQUIRES: Pin.

 private:
  struct Candidate {
    double worth;
    int64_t key;
  };
  std::vector<Candidate> Sample(int64_t wanted);
  void AddCandidates(const TableStripe& stripe, int64_t bucket,
                     const Moment& now, std::vector<Candidate>* to) const;

  StripedTable& table_;
  const bool trains_;
  std::unique_lock<std::shared_mutex> hold_;
  std::vector<Id> pinned_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_BOUND_H_
