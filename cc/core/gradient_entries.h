#ifndef TFEMBED_CORE_GRADIENT_ENTRIES_H_
#define TFEMBED_CORE_GRADIENT_ENTRIES_H_

#include <cstdint>

namespace tfembed {

// One id of one bag, on its way to be sorted by rank. Bags are numbered through
// all features of a table, occurrences (of ids) as well.
struct WideEntry {
  WideEntry() = default;
  WideEntry(uint64_t rank, uint32_t bag, uint32_t occurrence)
      : rank_(rank), bag_(bag), occurrence_(occurrence) {}

  uint64_t rank() const { return rank_; }
  uint32_t bag() const { return bag_; }
  uint32_t occurrence() const { return occurrence_; }

 private:
  uint64_t rank_;
  uint32_t bag_;
  uint32_t occurrence_;  // Leads to the weight, and to the id of a hash.
};

// The same in half the memory, for ranks below 2^32 that ids can be told from,
// unweighted: half the traffic of a sort that is bound by it.
struct NarrowEntry {
  NarrowEntry() = default;
  NarrowEntry(uint64_t rank, uint32_t bag, uint32_t /*occurrence*/)
      : bits_(rank << 32 | bag) {}

  uint64_t rank() const { return bits_ >> 32; }
  uint32_t bag() const { return static_cast<uint32_t>(bits_); }
  uint32_t occurrence() const { return 0; }

 private:
  uint64_t bits_;
};

// Sorts n entries by rank, stably, with `spare` (room for n) beside them.
// Returns where they are then: `entries` or `spare`.
template <class Entry>
Entry* SortByRank(Entry* entries, Entry* spare, int64_t n);

extern template NarrowEntry* SortByRank(NarrowEntry*, NarrowEntry*, int64_t);
extern template WideEntry* SortByRank(WideEntry*, WideEntry*, int64_t);

}  // namespace tfembed

#endif  // TFEMBED_CORE_GRADIENT_ENTRIES_H_
