#ifndef TFEMBED_CORE_SUM_READER_H_
#define TFEMBED_CORE_SUM_READER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/core/gradient_entries.h"
#include "cc/core/rows.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/support/prefetch.h"
#include "cc/core/table_gradients.h"

namespace tfembed {

// Where a bag's gradient is and what to multiply it with.
struct BagSource {
  const float* gradient;
  float scale;
  uint32_t feature;
};

// What the entries of a table mean.
struct EntryMeaning {
  const BagSource* sources = nullptr;
  absl::Span<const BagGradients> features;
  const int64_t* first_occurrence = nullptr;  // Of each feature, and the end.
  // Whether an id is its base and some bits of its rank; else it is that of the
  // entry's occurrence.
  bool ranks_tell_ids = true;
  int64_t base = 0;
  uint64_t id_mask = ~uint64_t{0};
  int part_shift = 64;
  bool is_weighted = false;
  bool accumulate = true;
  int64_t dim = 0;

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
    if (!is_weighted) return source.scale;
    const float* weights = features[source.feature].bags.weights;
    if (weights == nullptr) return source.scale;
    return source.scale *
           weights[occurrence - first_occurrence[source.feature]];
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
        block_size_(std::clamp<int64_t>(kBlockFloats / meaning.dim, kMinSums,
                                        kMaxSums)) {}

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
  // About what the nearest cache holds of sums and their rows.
  static constexpr int64_t kBlockFloats = 2048;
  static constexpr int64_t kMinSums = 8;
  static constexpr int64_t kMaxSums = 128;
  static constexpr int64_t kMaxEntries = 512;
  static constexpr int64_t kAhead = 8;  // Entries whose gradient is fetched.
  static constexpr int64_t kSourcesAhead = 24;  // And those whose source is.

  void Expand(int64_t i) {
    if (position_ + kSourcesAhead < n_) {
      __builtin_prefetch(
          &meaning_.sources[entries_[position_ + kSourcesAhead].bag()]);
    }
    if (position_ + kAhead < n_) {
      // Into the second cache, as rows: updates with 1 id take 0.78 of the time
      // at width 64, 0.96 at 16, with ~20 ids 0.95 (Zen 4).
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
    total_.assign(sum, sum + dim);
    while (Continues(rank)) {
      ExpandRun(rank, kMaxEntries);
      Pool(1, false, {}, sum);
      for (int64_t c = 0; c < dim; ++c) total_[c] += sum[c];
    }
    std::copy(total_.begin(), total_.end(), sum);
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
  int64_t ends_[kMaxSums];
  const float* gradients_[kMaxEntries];
  float scales_[kMaxEntries];
  std::vector<double> total_;  // Of a long run.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUM_READER_H_
