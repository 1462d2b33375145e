#include "cc/core/step/pooled_lookup.h"

#include <algorithm>
#include <vector>

#include "cc/core/simd/dispatch.h"
#include "cc/core/step/id_bags.h"
#include "cc/core/support/row_copy.h"

namespace tfembed {
namespace {

constexpr int64_t kBagsPerTask = 1024;
constexpr int64_t kIdsPerTask = 1 << 15;
// Activations of so many bytes, more than a core's own caches, go past the
// caches,
constexpr int64_t kStreamedBytes = 4 << 20;
// where at most so many floats are read or written for each float of theirs.
constexpr int64_t kMostRead = 5;
// Fewer floats than these are summed faster than a second thread wakes up.
constexpr int64_t kSerialFloats = 1 << 15;
// Rows located ahead of their sum: enough of them to keep the memory busy, few
// enough bytes to still be in the nearest cache when they are summed.
constexpr int64_t kBlockBytes = 1 << 16;
constexpr int64_t kMinBlock = 32;
constexpr int64_t kMaxBlock = 256;
// How far ahead of being located ids are asked for; twice as many are too many
// beside wide rows.
constexpr int64_t kIdsAhead = 256;

// One thread's buffers, kept from step to step.
struct Scratch {
  std::vector<float> scales;       // One per bag of the task.
  std::vector<int64_t> ends;       // One per segment of a block.
  std::vector<const float*> rows;  // Two blocks.
  std::vector<float> float_rows;   // One block, where it is needed.
};

// Whether every bag's activations are whole cache lines.
bool BeginsAtLines(const PooledFeature& feature) {
  constexpr int64_t kLineFloats = kLineBytes / sizeof(float);
  return feature.source->dim() % kLineFloats == 0 &&
         feature.stride % kLineFloats == 0 &&
         reinterpret_cast<uintptr_t>(feature.activations) % kLineBytes == 0;
}

// Pools the bags of one task. Blocks of ids are located one ahead of the block
// that is summed; a bag may span blocks.
class BagPooler {
 public:
  BagPooler(const PooledFeature& feature, const BagRange& range, bool streams,
            Scratch* scratch)
      : feature_(feature),
        bags_(feature.bags),
        range_(range),
        end_(bags_.begin_of(range.end)),
        dim_(feature.source->dim()),
        type_(feature.source->type()),
        block_size_(std::clamp<int64_t>(
            kBlockBytes / (dim_ * static_cast<int64_t>(sizeof(float))),
            kMinBlock, kMaxBlock)),
        streams_(streams && BeginsAtLines(feature)),
        scratch_(*scratch),
        bag_(range.begin) {}

  absl::Status Run() {
    scratch_.scales.resize(range_.end - range_.begin);
    BagScales(bags_, range_.begin, range_.end, scratch_.scales.data());
    scratch_.rows.resize(2 * block_size_);
    const float** rows = scratch_.rows.data();
    int64_t begin = bags_.begin_of(range_.begin);
    int64_t block_end = std::min(begin + block_size_, end_);
    absl::StatusOr<int64_t> missing = Locate(begin, block_end, rows);
    while (missing.ok() && begin < end_) {
      const bool widens = *missing > 0 || !type_.is_float32();
      const int64_t n = block_end - begin;
      const int64_t next_end = std::min(block_end + block_size_, end_);
      missing = Locate(block_end, next_end, rows + n);
      if (!missing.ok()) break;
      if (widens) Widen(begin, block_end, rows);
      SumBlock(begin, block_end, next_end - block_end, rows);
      std::copy(rows + n, rows + n + (next_end - block_end), rows);
      begin = block_end;
      block_end = next_end;
    }
    if (missing.ok()) SumBlock(end_, end_, 0, rows);  // Empty bags at the end.
    if (streams_) StreamedRows();
    return missing.status();
  }

 private:
  absl::StatusOr<int64_t> Locate(int64_t begin, int64_t end,
                                 const float** rows) const {
    PrefetchIds(bags_.ids, begin + kIdsAhead, std::min(end + kIdsAhead, end_));
    return feature_.source->Locate(bags_.ids + begin, end - begin, rows);
  }

  // Sums the ids [begin, end) into the activations of their bags. The addresses
  // of `num_ahead` more rows follow theirs.
  void SumBlock(int64_t begin, int64_t end, int64_t num_ahead,
                const float** rows) {
    PoolBlock block;
    block.rows = rows;
    block.weights = bags_.weights == nullptr ? nullptr : bags_.weights + begin;
    block.scales = scratch_.scales.data() + (bag_ - range_.begin);
    block.asks = !feature_.source->asks_for_rows();
    block.num_ahead = num_ahead;
    block.begins = begin == bags_.begin_of(range_.begin);
    block.dim = dim_;
    block.streams = streams_;
    block.sums = feature_.activations + bag_ * feature_.stride;
    block.stride = feature_.stride;
    block.continues = bag_ < range_.end && bags_.begin_of(bag_) < begin;
    std::vector<int64_t>& ends = scratch_.ends;
    ends.clear();
    while (bag_ < range_.end && bags_.begin_of(bag_ + 1) <= end) {
      ends.push_back(bags_.begin_of(++bag_) - begin);
    }
    block.open = bag_ < range_.end && bags_.begin_of(bag_) < end;
    if (block.open) ends.push_back(end - begin);
    block.ends = ends.data();
    block.num_segments = ends.size();
    ActiveKernels().pool(block);
  }

  // Lets `rows` be floats: initial ones where the table has none, copies of
  // narrower ones.
  void Widen(int64_t begin, int64_t end, const float** rows) {
    for (int64_t i = 0; i < end - begin; ++i) {
      if (rows[i] != nullptr && type_.is_float32()) continue;
      scratch_.float_rows.resize(block_size_ * dim_);
      float* row = scratch_.float_rows.data() + i * dim_;
      if (rows[i] == nullptr) {
        feature_.source->FillMissing(bags_.ids[begin + i], row);
      } else {
        type_.ToFloats(rows[i], row, dim_);
      }
      rows[i] = row;
    }
  }

  const PooledFeature& feature_;
  const IdBags& bags_;
  const BagRange range_;
  const int64_t end_;  // The index after the last id.
  const int64_t dim_;
  const ValueType type_;
  const int64_t block_size_;
  const bool streams_;
  Scratch& scratch_;
  int64_t bag_;  // The first bag that is not wholly summed.
};

}  // namespace

absl::Status PooledLookup(absl::Span<const PooledFeature> features,
                          Executor* executor) {
  std::vector<BagRange> ranges;
  int64_t floats = 0, activations = 0;
  for (size_t f = 0; f < features.size(); ++f) {
    const IdBags& bags = features[f].bags;
    AppendBagRanges(bags, f, kBagsPerTask, kIdsPerTask, &ranges);
    const int64_t dim = features[f].source->dim();
    floats += (bags.num_ids() + bags.num_bags) * dim;
    activations += bags.num_bags * dim;
  }
  // Where bags are long, what is read is most of the traffic, and activations
  // are better written through the caches.
  const int64_t bytes = activations * static_cast<int64_t>(sizeof(float));
  const bool streams =
      bytes >= kStreamedBytes && floats <= kMostRead * activations;
  FirstError error;
  ParallelFor(floats < kSerialFloats ? nullptr : executor, ranges.size(),
              [&](int64_t task) {
                static thread_local Scratch scratch;
                const BagRange& range = ranges[task];
                BagPooler pooler(features[range.feature], range, streams,
                                 &scratch);
                error.Update(task, pooler.Run());
              });
  return error.status();
}

}  // namespace tfembed
