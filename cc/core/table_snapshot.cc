#include <algorithm>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/striped_table.h"

namespace tfembed {
namespace {

constexpr int64_t kBuckets = 32;  // At a time.
constexpr int64_t kEntries = kBuckets * HashIndex::kBucketPlaces;

// Calls visit(n, keys, full rows) for all keys of a stripe, the rows
// prefetched.
template <typename Visit>
void ForEachBlock(const HashIndex& index, const RowStore& store, Visit visit) {
  int64_t keys[kEntries];
  const float* rows[kEntries];
  for (int64_t begin = 0; begin < index.num_buckets(); begin += kBuckets) {
    const int64_t end = std::min(begin + kBuckets, index.num_buckets());
    int64_t n = 0;
    index.ForEach(begin, end, [&](int64_t key, uint32_t row) {
      keys[n] = key;
      rows[n] = store.Row(row);
      PrefetchRow(rows[n], store.width());
      ++n;
    });
    visit(n, keys, rows);
  }
}

absl::Status CheckChunkRows(int64_t chunk_rows) {
  if (chunk_rows >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`chunk_rows` must be at least 1; got ", chunk_rows, "."));
}

// Hands rows on to a visitor in chunks, until it fails.
class Chunks {
 public:
  Chunks(int64_t chunk_rows, const EmbeddingTable::Visitor& visit)
      : chunk_rows_(chunk_rows), visit_(visit) {}

  // All rows of a stripe, which the caller has locked.
  void AddRows(const HashIndex& index, const RowStore& store) {
    const int64_t width = store.width();
    ForEachBlock(index, store,
                 [this, width](int64_t n, const int64_t* keys,
                               const float* const* rows) {
                   for (int64_t i = 0; i < n && status_.ok(); ++i) {
                     keys_.push_back(keys[i]);
                     rows_.insert(rows_.end(), rows[i], rows[i] + width);
                     if (static_cast<int64_t>(keys_.size()) == chunk_rows_) {
                       Flush();
                     }
                   }
                 });
  }

  void Flush() {
    if (!status_.ok() || keys_.empty()) return;
    status_ = visit_(keys_, rows_.data());
    keys_.clear();
    rows_.clear();
  }

  const absl::Status& status() const { return status_; }

 private:
  const int64_t chunk_rows_;
  const EmbeddingTable::Visitor& visit_;
  std::vector<int64_t> keys_;
  std::vector<float> rows_;
  absl::Status status_;
};

}  // namespace

absl::Status StripedTable::Visit(int64_t chunk_rows,
                                 const Visitor& visit) const {
  absl::Status status = CheckChunkRows(chunk_rows);
  if (!status.ok()) return status;
  std::shared_lock<std::shared_mutex> same_width(batches_);
  Chunks chunks(chunk_rows, visit);
  for (const TableStripe& stripe : stripes_) {
    std::shared_lock<std::shared_mutex> lock(stripe.mutex());
    chunks.AddRows(stripe.index(), *store_);
    if (!chunks.status().ok()) return chunks.status();
  }
  chunks.Flush();
  return chunks.status();
}

class StripedTable::FrozenStripes final : public EmbeddingTable::Snapshot {
 public:
  explicit FrozenStripes(const StripedTable& table)
      : table_(table), locks_(table.stripes_), now_(table.Now()) {}

  int64_t size() const override { return FirstKeys(table_.stripes_).back(); }

  uint64_t seed() const override { return table_.initial_rows_.seed(); }
  const SlotLayout& slots() const override { return table_.slots_; }
  const RowLayout& layout() const override { return table_.layout_; }

  uint32_t Note(const float* full_row) const override {
    return table_.eviction_->Saved(table_.Note(full_row), now_);
  }

  absl::Status Visit(int64_t chunk_rows, const Visitor& visit) const override {
    absl::Status status = CheckChunkRows(chunk_rows);
    if (!status.ok()) return status;
    Chunks chunks(chunk_rows, visit);
    for (const TableStripe& stripe : table_.stripes_) {
      chunks.AddRows(stripe.index(), *table_.store_);
      if (!chunks.status().ok()) return chunks.status();
    }
    chunks.Flush();
    return chunks.status();
  }

  void VisitBlocks(const BlockVisitor& visit,
                   Executor* executor) const override {
    const auto begins = FirstKeys(table_.stripes_);
    ParallelFor(executor, kNumStripes, [&](int64_t s) {
      int64_t first = begins[s];
      ForEachBlock(
          table_.stripes_[s].index(), *table_.store_,
          [&](int64_t n, const int64_t* keys, const float* const* rows) {
            visit(first, {keys, static_cast<size_t>(n)}, rows);
            first += n;
          });
    });
  }

  int64_t num_waiting() const override { return table_.CountWaiting(); }

  absl::Status VisitWaiting(int64_t chunk_keys,
                            const WaitingVisitor& visit) const override {
    absl::Status status = CheckChunkRows(chunk_keys);
    if (!status.ok()) return status;
    std::vector<int64_t> keys;
    std::vector<int32_t> seen;
    const auto flush = [&] {
      if (status.ok() && !keys.empty()) status = visit(keys, seen);
      keys.clear();
      seen.clear();
    };
    table_.ForEachWaiting([&](int64_t key, int32_t times) {
      keys.push_back(key);
      seen.push_back(times);
      if (static_cast<int64_t>(keys.size()) == chunk_keys) flush();
    });
    flush();
    return status;
  }

  absl::Span<const uint8_t> counters(int64_t block) const override {
    return table_.filters_[block]->shared_counters();
  }

 private:
  const StripedTable& table_;
  const SharedLocks locks_;
  const Moment now_;
};

std::unique_ptr<EmbeddingTable::Snapshot> StripedTable::Freeze() const {
  return std::make_unique<FrozenStripes>(*this);
}

}  // namespace tfembed
