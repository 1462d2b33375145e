#include "cc/core/table_gradients.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/bag_ranges.h"
#include "cc/core/bag_scales.h"
#include "cc/core/entry_ranks.h"
#include "cc/core/gradient_entries.h"
#include "cc/core/scratch_buffer.h"
#include "cc/core/sum_reader.h"

namespace tfembed {
namespace {

constexpr int64_t kBagsPerRange = 1 << 14;
constexpr int64_t kIdsPerRange = 1 << 14;
constexpr int64_t kMaxCount = int64_t{1} << 32;

template <class Entry>
class EntryGradients final : public TableGradients {
 public:
  EntryGradients(const Options& options, EntryLayout layout)
      : options_(options), layout_(std::move(layout)) {
    meaning_.features = options_.features;
    meaning_.first_occurrence = layout_.first_occurrence.data();
    meaning_.ranks_tell_ids = layout_.kind != RankKind::kHashes;
    meaning_.base = layout_.base;
    meaning_.id_mask = ~uint64_t{0} >> (64 - layout_.id_bits);
    meaning_.part_shift = layout_.part_shift;
    meaning_.is_weighted = layout_.is_weighted;
    meaning_.accumulate = options_.accumulate;
    meaning_.dim = options_.dim;
    sources_.Resize(layout_.num_bags());
    meaning_.sources = sources_.data();
    for (size_t f = 0; f < options_.features.size(); ++f) {
      AppendBagRanges(options_.features[f].bags, f, kBagsPerRange, kIdsPerRange,
                      &ranges_);
    }
    is_split_ = options_.max_tasks > 1;
    if (is_split_) {
      num_buckets_ = layout_.kind == RankKind::kIds
                         ? (layout_.max_offset >> layout_.bucket_shift) + 1
                         : options_.sink->num_parts();
      bucket_starts_.resize(ranges_.size() * (num_buckets_ + 1));
      collected_.Resize(layout_.num_ids());
    }
    if (options_.keeps_sorted) kept_.Resize(layout_.num_ids());
  }

  int64_t num_ids() const override { return layout_.num_ids(); }
  int64_t num_ranges() const override { return ranges_.size(); }
  int64_t num_tasks() const override { return tasks_.size(); }

  absl::Status Collect(int64_t range) override {
    const BagRange& r = ranges_[range];
    const BagGradients& feature = options_.features[r.feature];
    const int64_t begin = feature.bags.begin_of(r.begin);
    const int64_t n = feature.bags.begin_of(r.end) - begin;
    if (options_.sink != nullptr) {
      const absl::Status status =
          options_.sink->Check(feature.bags.ids + begin, n);
      if (!status.ok()) return status;
    }
    FillSources(r);
    if (is_split_) FillBuckets(range);
    return absl::OkStatus();
  }

  void Deal() override {
    if (num_ids() == 0) return;
    if (!is_split_) {
      tasks_.push_back({0, 1, 0, num_ids(), {}});
      return;
    }
    std::vector<int64_t> sizes(num_buckets_, 0);
    for (size_t range = 0; range < ranges_.size(); ++range) {
      const int64_t* starts = Starts(range);
      for (int64_t b = 0; b < num_buckets_; ++b) {
        sizes[b] += starts[b + 1] - starts[b];
      }
    }
    const int64_t target =
        (num_ids() + options_.max_tasks - 1) / options_.max_tasks;
    Task task = {0, 0, 0, 0, {}};
    for (int64_t b = 0; b < num_buckets_; ++b) {
      task.size += sizes[b];
      task.end_bucket = b + 1;
      if (task.size < target && b + 1 < num_buckets_) continue;
      if (task.size > 0) tasks_.push_back(task);
      task = {b + 1, b + 1, task.begin + task.size, 0, {}};
    }
  }

  void Sort(int64_t task) override {
    Task& t = tasks_[task];
    ScratchBuffer<Entry> spare;
    spare.Resize(t.size);
    Entry* kept = kept_.data() + t.begin;
    const Entry* sorted = FillAndSort(t, kept, spare.data());
    if (sorted != kept) std::copy(sorted, sorted + t.size, kept);
    for (int64_t i = 0; i < t.size; ++i) {
      const uint64_t rank = kept[i].rank();
      if (i > 0 && rank == kept[i - 1].rank()) continue;
      const int part = meaning_.Part(rank);
      if (t.parts.empty() || t.parts.back().part != part) {
        t.parts.push_back({part, 0});
      }
      ++t.parts.back().ids;
    }
  }

  const std::vector<PartSize>& PartSizes(int64_t task) const override {
    return tasks_[task].parts;
  }

  std::unique_ptr<SumReader> Read(int64_t task) override {
    const Task& t = tasks_[task];
    if (options_.keeps_sorted) {
      return std::make_unique<EntrySumReader<Entry>>(
          meaning_, kept_.data() + t.begin, t.size);
    }
    static thread_local std::vector<Entry> scratch;
    if (scratch.size() < 2 * t.size) scratch.resize(2 * t.size + t.size / 4);
    const Entry* sorted =
        FillAndSort(t, scratch.data(), scratch.data() + t.size);
    return std::make_unique<EntrySumReader<Entry>>(meaning_, sorted, t.size);
  }

 private:
  // Consecutive buckets of ids.
  struct Task {
    int64_t begin_bucket;
    int64_t end_bucket;
    int64_t begin;  // Where it is among the kept entries.
    int64_t size;   // In entries.
    std::vector<PartSize> parts;
  };

  int64_t* Starts(int64_t range) {
    return bucket_starts_.data() + range * (num_buckets_ + 1);
  }

  int64_t FirstOccurrence(const BagRange& r) const {
    return layout_.first_occurrence[r.feature] +
           options_.features[r.feature].bags.begin_of(r.begin);
  }

  int64_t BucketOf(uint64_t rank) const {
    return layout_.kind == RankKind::kIds
               ? static_cast<int64_t>(rank >> layout_.bucket_shift)
               : meaning_.Part(rank);
  }

  void FillSources(const BagRange& r) {
    const BagGradients& feature = options_.features[r.feature];
    ScratchBuffer<float> scales;
    scales.Resize(r.end - r.begin);
    BagScales(feature.bags, r.begin, r.end, scales.data());
    BagSource* sources = sources_.data() + layout_.first_bag[r.feature];
    for (int64_t bag = r.begin; bag < r.end; ++bag) {
      sources[bag] = {feature.gradients + bag * feature.stride,
                      scales.data()[bag - r.begin],
                      static_cast<uint32_t>(r.feature)};
    }
  }

  // Writes one entry per id of the range.
  Entry* FillEntries(const BagRange& r, Entry* entries) const {
    switch (layout_.kind) {
      case RankKind::kIds:
        return FillRanked<RankKind::kIds>(r, entries);
      case RankKind::kParts:
        return FillRanked<RankKind::kParts>(r, entries);
      case RankKind::kHashes:
        return FillRanked<RankKind::kHashes>(r, entries);
    }
    return entries;
  }

  template <RankKind kKind>
  Entry* FillRanked(const BagRange& r, Entry* entries) const {
    const IdBags& bags = options_.features[r.feature].bags;
    EntryRanks<kKind> rank(layout_, options_.sink, bags.ids,
                           bags.begin_of(r.begin), bags.begin_of(r.end));
    uint32_t occurrence = FirstOccurrence(r);
    for (int64_t bag = r.begin; bag < r.end; ++bag) {
      const uint32_t number = layout_.first_bag[r.feature] + bag;
      const int64_t end = bags.begin_of(bag + 1);
      for (int64_t i = bags.begin_of(bag); i < end; ++i) {
        *entries++ = Entry(rank(i), number, occurrence++);
      }
    }
    return entries;
  }

  // The range's entries, in order of buckets, at its place in collected_.
  void FillBuckets(int64_t range) {
    const BagRange& r = ranges_[range];
    const int64_t first = FirstOccurrence(r);
    const IdBags& bags = options_.features[r.feature].bags;
    const int64_t n = bags.begin_of(r.end) - bags.begin_of(r.begin);
    ScratchBuffer<Entry> buffer;
    buffer.Resize(n);
    const Entry* entries = buffer.data();
    FillEntries(r, buffer.data());
    ScratchBuffer<uint32_t> buckets;
    buckets.Resize(n);
    int64_t* starts = Starts(range);
    std::fill(starts, starts + num_buckets_ + 1, 0);
    for (int64_t i = 0; i < n; ++i) {
      buckets.data()[i] = BucketOf(entries[i].rank());
      ++starts[buckets.data()[i]];
    }
    int64_t start = first;
    for (int64_t b = 0; b <= num_buckets_; ++b) {
      start += std::exchange(starts[b], start);
    }
    Entry* collected = collected_.data();
    for (int64_t i = 0; i < n; ++i) {
      collected[starts[buckets.data()[i]]++] = entries[i];
    }
    // Each start has moved to the next bucket's.
    std::copy_backward(starts, starts + num_buckets_,
                       starts + num_buckets_ + 1);
    starts[0] = first;
  }

  const Entry* FillAndSort(const Task& task, Entry* entries, Entry* spare) {
    Entry* end = entries;
    for (size_t range = 0; range < ranges_.size(); ++range) {
      if (!is_split_) {
        end = FillEntries(ranges_[range], end);
        continue;
      }
      const int64_t* starts = Starts(range);
      end = std::copy(collected_.data() + starts[task.begin_bucket],
                      collected_.data() + starts[task.end_bucket], end);
    }
    return SortByRank(entries, spare, task.size);
  }

  const Options options_;
  const EntryLayout layout_;
  EntryMeaning meaning_;
  std::vector<BagRange> ranges_;
  bool is_split_ = false;
  int64_t num_buckets_ = 1;
  ScratchBuffer<BagSource> sources_;    // One per bag.
  ScratchBuffer<Entry> collected_;      // One per id, where split.
  std::vector<int64_t> bucket_starts_;  // [range, bucket]: in collected_.
  ScratchBuffer<Entry> kept_;           // One per id, where kept.
  std::vector<Task> tasks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TableGradients>> TableGradients::Create(
    const Options& options) {
  EntryLayout layout =
      LayOutEntries(options.features, options.sink, options.ids);
  if (layout.num_bags() >= kMaxCount || layout.num_ids() >= kMaxCount) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A step updates a table with fewer than 2^32 bags and ids; got ",
        layout.num_bags(), " bags and ", layout.num_ids(), " ids."));
  }
  const bool is_narrow = layout.is_narrow();
  std::unique_ptr<TableGradients> result;
  if (is_narrow) {
    result = std::make_unique<EntryGradients<NarrowEntry>>(options,
                                                           std::move(layout));
  } else {
    result =
        std::make_unique<EntryGradients<WideEntry>>(options, std::move(layout));
  }
  return result;
}

}  // namespace tfembed
