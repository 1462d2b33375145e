#include "cc/core/entry_ranks.h"

namespace tfembed {
namespace {

// Buckets by which the ids of a table without parts are dealt to tasks.
constexpr uint64_t kMaxBuckets = 256;

int BitWidth(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

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
