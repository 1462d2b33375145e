#include "cc/core/step/table_gradients.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/rows/rows.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/step/gradient_entries.h"
#include "cc/core/step/id_bags.h"
#include "cc/core/support/prefetch.h"
#include "cc/core/support/scratch_buffer.h"

namespace tfembed {
namespace {

// Where a bag's gradient is and what to multiply it with.
struct BagSource {
  const float* gradient;
  float scale;
  uint32_t feature;
};

// Tells which bag and gradient an entry of a table stands for.
struct EntryMeaning {
  const BagSource* sources = nullptr;
  absl::Span<const BagGradients> features;
  const int64_t* first_occurrence = nullptr;  // By feature; then the end.
  // Whether an id is its base and some bits of its rank; else it is that of the
  // entry's occurrence.
  bool ranks_tell_ids = true;
  int64_t base = 0;
  uint64_t id_mask = ~uint64_t{0};
  int part_shift = 64;
  bool is_weighted = false;
  bool accumulate = true;
  int64_t dim = 0;
  float factor = 1;  // Of all gradients.

  int64_t Id(uint64_t rank, uint32_t occurrence) const {
    if (ranks_tell_ids) return static_cast<int64_t>((rank & id_mask) + base);
    const int64_t* end = first_occurrence + features.size();
    const int64_t f = std::upper_bound(first_occurrence, end, occurrence) -
                      first_occurrence - 1;
    return features[f].bags.ids[occurrence - first_occurrence[f]];
  }

  int Part(uint64_t rank) const {
    return static_cast<int>(rank >> (part_shift - 1) >> 1);
  }

  float Scale(const BagSource& source, uint32_t occurrence) const {
    const float scale = source.scale * factor;
    if (!is_weighted) return scale;
    const float* weights = features[source.feature].bags.weights;
    if (weights == nullptr) return scale;
    return scale * weights[occurrence - first_occurrence[source.feature]];
  }
};

// Sums runs of equal ranks of sorted entries.
template <class Entry>
class EntrySumReader final : public SumReader {
 public:
  // Borrows all of them.
  EntrySumReader(const EntryMeaning& meaning, const Entry* entries, int64_t n)
      : meaning_(meaning),
        entries_(entries),
        n_(n),
        block_size_(SumBlock::MostSums(meaning.dim)) {}

  bool Next(SumBlock* block, const RowsToFetch& to_write) override {
    if (position_ == n_) return false;
    block->ids.resize(block_size_);
    block->sums.resize(block_size_ * meaning_.dim);
    block->part = meaning_.Part(entries_[position_].rank());
    block->n = 0;
    int64_t count = 0;
    uint64_t rank = 0;
    for (; position_ < n_ && count < kMaxEntries; ++position_) {
      const Entry& entry = entries_[position_];
      if (block->n == 0 || entry.rank() != rank || !meaning_.accumulate) {
        if (block->n == block_size_ ||
            meaning_.Part(entry.rank()) != block->part) {
          break;
        }
        rank = entry.rank();
        block->ids[block->n] = meaning_.Id(rank, entry.occurrence());
        if (block->n > 0) ends_[block->n - 1] = count;
        ++block->n;
      }
      Expand(count++);
    }
    ends_[block->n - 1] = count;
    const int64_t summed = count - (block->n == 1 ? 0 : ends_[block->n - 2]);
    Pool(block->n, false, to_write, block->sums.data());
    if (meaning_.accumulate) FinishRun(rank, summed, block);
    return true;
  }

 private:
  static constexpr int64_t kMaxEntries = 512;
  static constexpr int64_t kAhead = 8;  // Entries whose gradient is fetched.
  static constexpr int64_t kSourcesAhead = 24;  // And those whose source is.

  void Expand(int64_t i) {
    if (position_ + kSourcesAhead < n_) {
      __builtin_prefetch(
          &meaning_.sources[entries_[position_ + kSourcesAhead].bag()]);
    }
    if (position_ + kAhead < n_) {
      // Into the second cache, as rows.
      PrefetchRow(meaning_.sources[entries_[position_ + kAhead].bag()].gradient,
                  meaning_.dim);
    }
    const Entry& entry = entries_[position_];
    const BagSource& source = meaning_.sources[entry.bag()];
    gradients_[i] = source.gradient;
    scales_[i] = meaning_.Scale(source, entry.occurrence());
  }

  void Pool(int64_t num_segments, bool continues, const RowsToFetch& to_write,
            float* sums) const {
    PoolBlock pool;
    pool.rows = gradients_;
    pool.weights = scales_;
    pool.ends = ends_;
    pool.num_segments = num_segments;
    pool.continues = continues;
    pool.asks = meaning_.dim > kMostWordsAsked;  // Else Expand did.
    pool.to_write = to_write;
    pool.dim = meaning_.dim;
    pool.sums = sums;
    pool.stride = meaning_.dim;
    ActiveKernels().pool(pool);
  }

  // The last run of a block, of which `summed` entries are in its sum, may be
  // longer than the block's entries. Each so many of a run, wherever it began,
  // have a sum of their own, and these are added in float64: one by one in
  // float32, 200,000 equal gradients are off by 1e-5 of their sum.
  void FinishRun(uint64_t rank, int64_t summed, SumBlock* block) {
    if (!Continues(rank)) return;
    const int64_t dim = meaning_.dim;
    float* const sum = block->sums.data() + (block->n - 1) * dim;
    ExpandRun(rank, kMaxEntries - summed);
    Pool(1, true, {}, sum);
    if (!Continues(rank)) return;
    std::vector<double>& total = block->total;
    total.assign(sum, sum + dim);
    while (Continues(rank)) {
      ExpandRun(rank, kMaxEntries);
      Pool(1, false, {}, sum);
      for (int64_t c = 0; c < dim; ++c) total[c] += sum[c];
    }
    std::copy(total.begin(), total.end(), sum);
  }

  bool Continues(uint64_t rank) const {
    return position_ < n_ && entries_[position_].rank() == rank;
  }

  // Makes the next entries of a run, up to `most`, the only segment.
  void ExpandRun(uint64_t rank, int64_t most) {
    int64_t count = 0;
    for (; count < most && Continues(rank); ++position_) Expand(count++);
    ends_[0] = count;
  }

  const EntryMeaning& meaning_;
  const Entry* const entries_;
  const int64_t n_;
  const int64_t block_size_;
  int64_t position_ = 0;
  int64_t ends_[SumBlock::kMostSums];
  const float* gradients_[kMaxEntries];
  float scales_[kMaxEntries];
};

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

  void Scale(float factor) override { meaning_.factor *= factor; }

  int64_t MostSums(int64_t task) const override { return tasks_[task].size; }

  void Prepare() override {
    if (options_.keeps_sorted) return;
    int64_t most = 0;
    for (const Task& task : tasks_) most = std::max(most, task.size);
    Scratch(most);
  }

  SumReader* Read(int64_t task, SumReaderPlace* place) override {
    using Reader = EntrySumReader<Entry>;
    static_assert(sizeof(Reader) <= sizeof(SumReaderPlace));
    static_assert(std::is_trivially_destructible_v<Reader>);
    const Task& t = tasks_[task];
    const Entry* sorted = kept_.data() + t.begin;
    if (!options_.keeps_sorted) {
      Entry* const scratch = Scratch(t.size);
      sorted = FillAndSort(t, scratch, scratch + t.size);
    }
    return new (place->bytes) Reader(meaning_, sorted, t.size);
  }

 private:
  // The thread's memory for the entries of a task, and as many beside them.
  static Entry* Scratch(int64_t size) {
    static thread_local std::vector<Entry> scratch;
    if (static_cast<int64_t>(scratch.size()) < 2 * size) {
      scratch.resize(2 * size + size / 4);
    }
    return scratch.data();
  }

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

int64_t DropNonFinite(int64_t dim, SumBlock* block) {
  const Kernels& kernels = ActiveKernels();
  float* sums = block->sums.data();
  if (kernels.all_finite(sums, block->n * dim)) return 0;
  int64_t kept = 0;
  for (int64_t i = 0; i < block->n; ++i) {
    if (!kernels.all_finite(sums + i * dim, dim)) continue;
    block->ids[kept] = block->ids[i];
    std::copy_n(sums + i * dim, dim, sums + kept * dim);
    ++kept;
  }
  const int64_t dropped = block->n - kept;
  block->n = kept;
  return dropped;
}

absl::Status RefuseNonFinite(absl::string_view table, const RowSink& sink,
                             SumReader* reader) {
  const Kernels& kernels = ActiveKernels();
  const int64_t dim = sink.dim();
  SumBlock block;
  while (reader->Next(&block, {})) {
    for (int64_t i = 0; i < block.n; ++i) {
      if (kernels.all_finite(block.sums.data() + i * dim, dim)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("The summed gradient of id ", sink.NameOf(block.ids[i]),
                       " of ", table,
                       " has a NaN or an infinity; nothing was changed. Skip "
                       "such rows with nonfinite=\"skip\", or find where "
                       "they come from."));
    }
  }
  return absl::OkStatus();
}

}  // namespace tfembed
