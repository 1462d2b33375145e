// Lookups, and questions that the index alone answers.
#include <algorithm>
#include <memory>

#include "cc/core/support/row_copy.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/table/table_stripe.h"

namespace tfembed {
namespace {

constexpr int64_t kKeysPerTask = 4096;
constexpr int64_t kKeysPerSmallTask = 1024;
constexpr int64_t kMostStreamed = 4096;  // Bytes of an initial row.

// Whether the next keys' buckets are prefetched together with rows of the keys
// before. To do so is faster where a row is a line. Wider rows that go past the
// caches alone are as much as a core can have under way; lookups of bags have
// other work meanwhile.
bool LooksAhead(int64_t floats, bool streams) {
  return floats <= kLineBytes / static_cast<int64_t>(sizeof(float)) && !streams;
}

// Copies the rows that are there past the caches; null ones are left out.
void StreamFound(const float* const* rows, int64_t n, char* values,
                 int64_t bytes) {
  ReadBlock block;
  block.rows = rows;
  block.n = n;
  block.lines = bytes / kLineBytes;
  block.values = reinterpret_cast<float*>(values);
  ActiveKernels().stream_rows(block);
}

constexpr int64_t kLookAhead = 16;  // Keys whose buckets are under way.
constexpr int64_t kKeysPerContainsTask = 8192;

}  // namespace

class EmbeddingTable::Source final : public RowSource {
 public:
  explicit Source(const EmbeddingTable& table)
      : table_(table),
        locks_(table.stripes_),
        indexes_(table.stripes_.Indexes()) {}

  int64_t dim() const override { return table_.dim(); }
  ValueType type() const override { return table_.type(); }

  absl::StatusOr<int64_t> Locate(const int64_t* ids, int64_t n,
                                 const float** rows) const override {
    table_.stripes_.AssertReaderHeld();
    table_.stripes_.any().AssertReaderHeld();
    int64_t hits = 0;
    for (int64_t begin = 0; begin < n; begin += kFindKeys) {
      hits += FindRows(table_.stripes_, *table_.store_, indexes_, ids + begin,
                       std::min(n - begin, kFindKeys),
                       table_.layout_.slots_begin(), rows + begin);
    }
    table_.hits_.Add(hits);
    table_.misses_.Add(n - hits);
    return n - hits;
  }

  bool asks_for_rows() const override {
    table_.stripes_.any().AssertReaderHeld();
    return table_.layout_.slots_begin() <= kMostWordsAsked;
  }

  void FillMissing(int64_t id, float* row) const override {
    table_.stripes_.any().AssertReaderHeld();
    table_.missing_rows().FillFloats(id, row);
  }

 private:
  const EmbeddingTable& table_;
  SharedLocks locks_;
  const StripeIndexes indexes_;
};

std::unique_ptr<RowSource> EmbeddingTable::Read() const {
  return std::make_unique<Source>(*this);
}

void EmbeddingTable::LookupFrom(KeySource* keys, void* values, bool* exists,
                                Executor* executor) const {
  SharedLocks locks(stripes_);
  keys->Begin();
  const StripeIndexes indexes = stripes_.Indexes();
  const int64_t bytes = layout_.value_bytes();
  const int64_t n = keys->size();
  const bool streams = StreamsRows(bytes, n) &&
                       reinterpret_cast<uintptr_t>(values) % kLineBytes == 0;
  // The last quarter in small tasks, so that all threads end together.
  const int64_t large = n / kKeysPerTask * 3 / 4;
  const int64_t small =
      (n - large * kKeysPerTask + kKeysPerSmallTask - 1) / kKeysPerSmallTask;
  ParallelFor(executor, large + small, [&](int64_t task) {
    const bool is_large = task < large;
    const int64_t begin =
        is_large ? task * kKeysPerTask
                 : large * kKeysPerTask + (task - large) * kKeysPerSmallTask;
    const int64_t end =
        std::min(n, begin + (is_large ? kKeysPerTask : kKeysPerSmallTask));
    WithKnownBytes(bytes, [&](auto known) {
      stripes_.AssertReaderHeld();
      stripes_.any().AssertReaderHeld();
      LookupRange<known>(indexes, *keys, begin, end, static_cast<char*>(values),
                         exists, streams);
    });
  });
}

template <int64_t kBytes>
void EmbeddingTable::LookupRange(const StripeIndexes& indexes,
                                 const KeySource& source, int64_t first,
                                 int64_t last, char* values, bool* exists,
                                 bool streams) const {
  const int64_t bytes = kBytes > 0 ? kBytes : layout_.value_bytes();
  alignas(64) char initial[kMostStreamed];
  const bool streamed = streams && bytes <= kMostStreamed;
  static_assert(kFindKeys <= KeySource::kMostKeys);
  int64_t buffers[2][kFindKeys];
  const float* rows[kFindKeys];
  FindBlock blocks[2];
  for (FindBlock& block : blocks) {
    block.floats_to_fetch = layout_.slots_begin();
    block.rows = rows;
  }
  const bool looks_ahead = LooksAhead(layout_.slots_begin(), streams);
  const auto set_block = [&](int b, int64_t begin) {
    const int64_t n = std::min(kFindKeys, last - begin);
    const int64_t* const keys =
        n > 0 ? source.Block(begin, n, buffers[b]) : nullptr;
    SetKeys(*store_, indexes, keys, n, &blocks[b]);
  };
  int64_t hits = 0;
  set_block(0, first);
  for (int64_t begin = first, b = 0; begin < last; begin += kFindKeys) {
    FindBlock& block = blocks[b];
    const int64_t n = block.n, end = begin + n;
    if (begin == first || !looks_ahead) ActiveKernels().ask_for_homes(&block);
    b = 1 - b;
    if (looks_ahead) {
      set_block(b, end);
      block.next = &blocks[b];
    }
    const int64_t found = FindAskedFor(stripes_, *store_, &block);
    // Strings wait for theirs while these rows are on their way; above, while
    // buckets are.
    if (!looks_ahead) set_block(b, end);
    hits += found;
    if (streams) {
      StreamFound(rows, n, values + begin * bytes, bytes);
      if (found == n && exists == nullptr) continue;
    }
    for (int64_t i = 0; i < n; ++i) {
      const float* const row = rows[i];
      char* value = values + (begin + i) * bytes;
      if (row == nullptr) {
        missing_rows().Fill(block.keys[i], streamed ? initial : value);
        if (streamed) StreamRow(initial, value, bytes);
      } else if (!streams) {
        CopyBytes(row, value, bytes);
      }
      if (exists != nullptr) exists[begin + i] = row != nullptr;
    }
  }
  if (streams) StreamedRows();
  hits_.Add(hits);
  misses_.Add(last - first - hits);
}

absl::Status EmbeddingTable::ExportKeys(
    const std::function<absl::StatusOr<int64_t*>(int64_t n)>& allocate,
    Executor* executor) const {
  SharedLocks locks(stripes_, Stay::kLong);
  const auto begins = stripes_.FirstKeys();
  absl::StatusOr<int64_t*> keys = allocate(begins[kNumStripes]);
  if (!keys.ok()) return keys.status();
  ParallelFor(executor, kNumStripes, [&](int64_t s) {
    stripes_.AssertReaderHeld();
    const HashIndex& index = stripes_.index(s);
    int64_t* to = *keys + begins[s];
    index.ForEach(0, index.num_buckets(),
                  [&to](int64_t key, uint32_t row) { *to++ = key; });
  });
  return absl::OkStatus();
}

void EmbeddingTable::Contains(absl::Span<const int64_t> keys, bool* exists,
                              Executor* executor) const {
  SharedLocks locks(stripes_);
  const int64_t n = keys.size();
  ParallelFor(
      executor, (n + kKeysPerContainsTask - 1) / kKeysPerContainsTask,
      [&](int64_t t) {
        const int64_t end = std::min(n, (t + 1) * kKeysPerContainsTask);
        stripes_.AssertReaderHeld();
        for (int64_t i = t * kKeysPerContainsTask; i < end; ++i) {
          const uint64_t ahead =
              HashKey(keys[std::min(i + kLookAhead, end - 1)]);
          __builtin_prefetch(stripes_.index(StripeOf(ahead)).Home(ahead));
          const uint64_t hash = HashKey(keys[i]);
          exists[i] = stripes_.index(StripeOf(hash)).Find(hash, keys[i]) !=
                      HashIndex::kNoRow;
        }
      });
}

}  // namespace tfembed
