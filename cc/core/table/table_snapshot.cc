#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/support/guard_memory.h"
#include "cc/core/support/row_copy.h"
#include "cc/core/table/embedding_table.h"

namespace tfembed {
namespace {

constexpr int64_t kBuckets = 32;  // At a time.
constexpr int64_t kEntries = kBuckets * HashIndex::kBucketPlaces;

// Some keys of a stripe and their full rows, in place.
struct Block {
  // Loads the keys of the buckets from `begin` on and prefetches their rows.
  // Returns the bucket after them.
  int64_t Load(const HashIndex& index, const RowStore& store, int64_t begin) {
    const int64_t end = std::min(begin + kBuckets, index.num_buckets());
    n = 0;
    index.ForEach(begin, end, [&](int64_t key, uint32_t row) {
      keys[n] = key;
      rows[n] = store.Row(row);
      PrefetchRow(rows[n], store.width());
      ++n;
    });
    return end;
  }

  int64_t n = 0;
  int64_t keys[kEntries];
  const float* rows[kEntries];
};

absl::Status CheckChunkRows(int64_t chunk_rows) {
  if (chunk_rows >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`chunk_rows` must be at least 1; got ", chunk_rows, "."));
}

absl::Status NoMemoryToCopy(int64_t rows) {
  return absl::ResourceExhaustedError(
      absl::StrCat("There is no memory for a copy of ", rows,
                   " rows. Take fewer at a time, or free some memory."));
}

// Copies of keys and full rows.
struct Chunk {
  absl::Status Allocate(int64_t most, int64_t width) {
    keys.reset(new (std::nothrow) int64_t[most]);
    rows.reset(new (std::nothrow) float[most * width]);
    if (keys != nullptr && rows != nullptr) return absl::OkStatus();
    return NoMemoryToCopy(most);
  }

  // ResourceExhausted also where the visitor had no memory.
  absl::Status Show(const EmbeddingTable::Snapshot::Visitor& visit) const {
    return GuardMemory(
        [&] {
          return visit({keys.get(), static_cast<size_t>(n)}, rows.get());
        },
        [&] { return NoMemoryToCopy(n); });
  }

  int64_t n = 0;
  std::unique_ptr<int64_t[]> keys;
  std::unique_ptr<float[]> rows;
};

// A walk over the rows of all stripes, which the caller has locked.
class Walk {
 public:
  Walk(const TableStripes& stripes, const RowStore& store)
      : stripes_(stripes), store_(store) {}

  // Copies the next rows, `most` of them or what is left.
  void Fill(int64_t most, Chunk* chunk) {
    const int64_t width = store_.width();
    chunk->n = 0;
    while (chunk->n < most && (at_ < block_.n || LoadNext())) {
      const int64_t n = std::min(most - chunk->n, block_.n - at_);
      std::copy_n(block_.keys + at_, n, chunk->keys.get() + chunk->n);
      float* to = chunk->rows.get() + chunk->n * width;
      for (int64_t i = 0; i < n; ++i, to += width) {
        CopyRow(block_.rows[at_ + i], to, width);
      }
      at_ += n;
      chunk->n += n;
    }
  }

 private:
  // False: there is no row left.
  bool LoadNext() {
    at_ = block_.n = 0;
    while (block_.n == 0 && stripe_ < kNumStripes) {
      stripes_.AssertReaderHeld();
      const HashIndex& index = stripes_.index(stripe_);
      if (bucket_ < index.num_buckets()) {
        bucket_ = block_.Load(index, store_, bucket_);
      } else {
        ++stripe_;
        bucket_ = 0;
      }
    }
    return block_.n > 0;
  }

  const TableStripes& stripes_;
  const RowStore& store_;
  int stripe_ = 0;
  int64_t bucket_ = 0;  // Loaded next.
  Block block_;
  int64_t at_ = 0;  // The key of the block to copy next.
};

}  // namespace

EmbeddingTable::Snapshot::Snapshot(const EmbeddingTable& table)
    : table_(table), locks_(table.stripes_, Stay::kLong), now_(table.Now()) {}

int64_t EmbeddingTable::Snapshot::size() const {
  table_.stripes_.AssertReaderHeld();
  return table_.stripes_.FirstKeys().back();
}

uint64_t EmbeddingTable::Snapshot::seed() const {
  table_.stripes_.any().AssertReaderHeld();
  return table_.initial_rows_.seed();
}

const SlotLayout& EmbeddingTable::Snapshot::slots() const {
  table_.stripes_.any().AssertReaderHeld();
  return table_.slots_;
}

const RowLayout& EmbeddingTable::Snapshot::layout() const {
  table_.stripes_.any().AssertReaderHeld();
  return table_.layout_;
}

uint32_t EmbeddingTable::Snapshot::Note(const float* full_row) const {
  table_.stripes_.any().AssertReaderHeld();
  return table_.eviction_->Saved(table_.Note(full_row), now_);
}

absl::Status EmbeddingTable::Snapshot::Visit(int64_t chunk_rows,
                                             const Visitor& visit,
                                             Executor* executor) const {
  absl::Status status = CheckChunkRows(chunk_rows);
  const int64_t n = size();
  if (!status.ok() || n == 0) return status;
  const int64_t most = std::min(chunk_rows, n);
  const int64_t width = table_.store_->width();
  Chunk chunk, next;
  status = chunk.Allocate(most, width);
  if (status.ok() && most < n) status = next.Allocate(most, width);
  if (!status.ok()) return status;
  Walk walk(table_.stripes_, *table_.store_);
  walk.Fill(most, &chunk);
  while (status.ok() && chunk.n > 0) {
    const bool is_last = chunk.n < most;
    ParallelFor(is_last ? nullptr : executor, 2, [&](int64_t task) {
      if (task == 0) {
        status = chunk.Show(visit);
      } else {
        walk.Fill(most, &next);
      }
    });
    std::swap(chunk, next);
  }
  return status;
}

void EmbeddingTable::Snapshot::VisitBlocks(const BlockVisitor& visit,
                                           Executor* executor) const {
  table_.stripes_.AssertReaderHeld();
  const auto begins = table_.stripes_.FirstKeys();
  ParallelFor(executor, kNumStripes, [&](int64_t s) {
    table_.stripes_.AssertReaderHeld();
    const HashIndex& index = table_.stripes_.index(s);
    Block block;
    int64_t first = begins[s];
    for (int64_t bucket = 0; bucket < index.num_buckets();) {
      bucket = block.Load(index, *table_.store_, bucket);
      visit(first, {block.keys, static_cast<size_t>(block.n)}, block.rows);
      first += block.n;
    }
  });
}

int64_t EmbeddingTable::Snapshot::num_waiting() const {
  table_.stripes_.AssertReaderHeld();
  return table_.CountWaiting();
}

absl::Status EmbeddingTable::Snapshot::VisitWaiting(
    int64_t chunk_keys, const WaitingVisitor& visit) const {
  table_.stripes_.AssertReaderHeld();
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

absl::Span<const uint8_t> EmbeddingTable::Snapshot::counters(
    int64_t block) const {
  table_.stripes_.AssertReaderHeld();
  return table_.stripes_.filter(block)->shared_counters();
}

std::unique_ptr<EmbeddingTable::Snapshot> EmbeddingTable::Freeze() const {
  return std::make_unique<Snapshot>(*this);
}

}  // namespace tfembed
