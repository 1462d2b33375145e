#ifndef TFEMBED_CORE_STEP_GRADIENT_ENTRIES_H_
#define TFEMBED_CORE_STEP_GRADIENT_ENTRIES_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "cc/core/rows/rows.h"
#include "cc/core/step/grouped_update.h"

namespace tfembed {

// An entry to sort: one id of one bag, by rank. Bags, and occurrences of ids,
// are numbered consecutively over all features of a table.
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

// An unweighted entry in half the memory, for ranks below 2^32 that determine
// the id: half the traffic of a sort that is bound by memory traffic.
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

// Sorts n entries by rank, stably, with `spare` as a buffer of n entries.
// Returns the array that has the result: `entries` or `spare`.
template <class Entry>
Entry* SortByRank(Entry* entries, Entry* spare, int64_t n);

extern template NarrowEntry* SortByRank(NarrowEntry*, NarrowEntry*, int64_t);
extern template WideEntry* SortByRank(WideEntry*, WideEntry*, int64_t);

// The least and the greatest id; least > greatest if there are no ids.
struct IdRange {
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t greatest = std::numeric_limits<int64_t>::min();
};
IdRange RangeOfIds(absl::Span<const BagGradients> features);

// The kinds of ranks by which a table's entries are sorted.
enum class RankKind {
  kIds,     // The id above a base.
  kParts,   // Its part, and behind that the id above a base: in 32 bits.
  kHashes,  // The sink's own ranks.
};

// The numbering of a table's bags and occurrences over its features, and the
// ranks of its ids.
struct EntryLayout {
  std::vector<int64_t> first_bag;         // By feature; then the end.
  std::vector<int64_t> first_occurrence;  // By feature; then the end.
  bool is_weighted = false;
  RankKind kind = RankKind::kIds;
  int64_t base = 0;         // With kIds and kParts.
  uint64_t max_offset = 0;  // The largest id - base.
  int id_bits = 64;         // The lowest ones of a rank.
  int part_shift = 64;      // From a rank to its part.
  int bucket_shift = 0;     // From a rank to its bucket, of kIds.

  int64_t num_bags() const { return first_bag.back(); }
  int64_t num_ids() const { return first_occurrence.back(); }

  // Says whether the entries fit into NarrowEntry.
  bool is_narrow() const {
    return !is_weighted && kind != RankKind::kHashes &&
           (kind == RankKind::kParts ||
            max_offset <= std::numeric_limits<uint32_t>::max());
  }
};

// `sink` null: distinct ids come out ascending. `ids`: see
// TableGradients::Options.
EntryLayout LayOutEntries(absl::Span<const BagGradients> features,
                          const RowSink* sink, const IdRange& ids);

// The ranks of a range of ids, read once each, in order.
template <RankKind kKind>
class EntryRanks {
 public:
  // Ranks ids[begin] to ids[end - 1]. Borrows all arguments.
  EntryRanks(const EntryLayout& layout, const RowSink* sink, const int64_t* ids,
             int64_t begin, int64_t end)
      : base_(layout.base),
        id_bits_(layout.id_bits),
        sink_(sink),
        sink_shift_(kKind == RankKind::kParts ? sink->part_shift() : 64),
        ids_(ids),
        end_(end),
        next_(begin) {}

  uint64_t operator()(int64_t i) {
    const uint64_t offset = static_cast<uint64_t>(ids_[i]) - base_;
    if (kKind == RankKind::kIds) return offset;
    if (i == next_) Fill();
    const uint64_t rank = ranks_[i - first_];
    if (kKind == RankKind::kHashes) return rank;
    return (rank >> (sink_shift_ - 1) >> 1) << id_bits_ | offset;
  }

 private:
  static constexpr int64_t kRanks = 128;  // At a time.

  void Fill() {
    first_ = next_;
    next_ = std::min(first_ + kRanks, end_);
    sink_->Ranks(ids_ + first_, next_ - first_, ranks_);
  }

  const uint64_t base_;
  const int id_bits_;
  const RowSink* const sink_;
  const int sink_shift_;
  const int64_t* const ids_;
  const int64_t end_;
  int64_t first_ = 0;
  int64_t next_;
  uint64_t ranks_[kRanks];
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_STEP_GRADIENT_ENTRIES_H_
