#include "cc/core/step/gradient_entries.h"

#include <algorithm>
#include <utility>

namespace tfembed {
namespace {

constexpr int kMaxDigitBits = 11;
constexpr int kMaxPasses = 4;

int BitWidth(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

// The bits of the ranks that a radix sort looks at. Ranks agree above `high`.
// Where there are many bits, only the upper ones are sorted by: so many that
// few different ranks agree in all of them. Such ranks are put in order
// afterwards.
struct Digits {
  int low = 0;
  int bits = 0;    // Per pass.
  int passes = 0;  // At most kMaxPasses.

  Digits(int high, int64_t n) {
    const int needed =
        std::min({high, BitWidth(n) + 6, kMaxPasses * kMaxDigitBits});
    passes = (needed + kMaxDigitBits - 1) / kMaxDigitBits;
    // The last few bits may cost no pass of their own.
    const int sorted = high <= passes * kMaxDigitBits ? high : needed;
    low = high - sorted;
    bits = passes == 0 ? 0 : (sorted + passes - 1) / passes;
  }

  uint32_t Of(uint64_t rank, int pass) const {
    return (rank >> (low + pass * bits)) & ((1u << bits) - 1);
  }
};

template <class Entry>
void SortEqualPrefixes(Entry* entries, int64_t n, int low) {
  for (int64_t begin = 0; begin < n;) {
    const uint64_t rank = entries[begin].rank();
    bool differ = false;
    int64_t end = begin + 1;
    while (end < n && entries[end].rank() >> low == rank >> low) {
      differ |= entries[end].rank() != rank;
      ++end;
    }
    if (differ) {
      std::stable_sort(
          entries + begin, entries + end,
          [](const Entry& a, const Entry& b) { return a.rank() < b.rank(); });
    }
    begin = end;
  }
}

// Buckets by which the ids of a table without parts are dealt to tasks.
constexpr uint64_t kMaxBuckets = 256;

void LayOutRanks(const RowSink* sink, const IdRange& ids, EntryLayout* layout) {
  const bool is_direct = sink != nullptr && sink->rank_limit() != 0;
  if (is_direct) {
    layout->max_offset = sink->rank_limit() - 1;
  } else if (ids.least <= ids.greatest) {
    layout->base = ids.least;
    layout->max_offset =
        static_cast<uint64_t>(ids.greatest) - static_cast<uint64_t>(ids.least);
  }
  if (is_direct || sink == nullptr) {
    while (layout->max_offset >> layout->bucket_shift >= kMaxBuckets) {
      ++layout->bucket_shift;
    }
    return;
  }
  layout->kind = RankKind::kHashes;
  layout->part_shift = sink->part_shift();
  const int id_bits = std::max(1, BitWidth(layout->max_offset));
  if (layout->is_weighted || 64 - layout->part_shift + id_bits > 32) return;
  layout->kind = RankKind::kParts;
  layout->id_bits = layout->part_shift = id_bits;
}

}  // namespace

template <class Entry>
Entry* SortByRank(Entry* entries, Entry* spare, int64_t n) {
  if (n < 2) return entries;
  uint64_t varying = 0;
  for (int64_t i = 1; i < n; ++i) {
    varying |= entries[i].rank() ^ entries[0].rank();
  }
  const Digits digits(BitWidth(varying), n);
  uint32_t starts[kMaxPasses][1 << kMaxDigitBits];
  for (int pass = 0; pass < digits.passes; ++pass) {
    std::fill(starts[pass], starts[pass] + (1 << digits.bits), 0);
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int pass = 0; pass < digits.passes; ++pass) {
      ++starts[pass][digits.Of(entries[i].rank(), pass)];
    }
  }
  for (int pass = 0; pass < digits.passes; ++pass) {
    uint32_t start = 0;
    for (int digit = 0; digit < 1 << digits.bits; ++digit) {
      start += std::exchange(starts[pass][digit], start);
    }
    for (int64_t i = 0; i < n; ++i) {
      spare[starts[pass][digits.Of(entries[i].rank(), pass)]++] = entries[i];
    }
    std::swap(entries, spare);
  }
  if (digits.low > 0) SortEqualPrefixes(entries, n, digits.low);
  return entries;
}

template NarrowEntry* SortByRank(NarrowEntry*, NarrowEntry*, int64_t);
template WideEntry* SortByRank(WideEntry*, WideEntry*, int64_t);

IdRange RangeOfIds(absl::Span<const BagGradients> features) {
  IdRange range;
  for (const BagGradients& feature : features) {
    const int64_t n = feature.bags.num_ids();
    for (int64_t i = 0; i < n; ++i) {
      range.least = std::min(range.least, feature.bags.ids[i]);
      range.greatest = std::max(range.greatest, feature.bags.ids[i]);
    }
  }
  return range;
}

EntryLayout LayOutEntries(absl::Span<const BagGradients> features,
                          const RowSink* sink, const IdRange& ids) {
  EntryLayout layout;
  layout.first_bag = {0};
  layout.first_occurrence = {0};
  for (const BagGradients& feature : features) {
    const IdBags& bags = feature.bags;
    layout.first_bag.push_back(layout.first_bag.back() + bags.num_bags);
    layout.first_occurrence.push_back(layout.first_occurrence.back() +
                                      bags.num_ids());
    layout.is_weighted |= bags.weights != nullptr;
  }
  LayOutRanks(sink, ids, &layout);
  return layout;
}

}  // namespace tfembed
