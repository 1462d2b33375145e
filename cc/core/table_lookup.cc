#include <algorithm>
#include <memory>

#include "cc/core/striped_table.h"
#include "cc/core/support/known_bytes.h"
#include "cc/core/table_find.h"

namespace tfembed {
namespace {

constexpr int64_t kKeysPerTask = 4096;
constexpr int64_t kKeysPerSmallTask = 1024;
constexpr int64_t kMostStreamed = 4096;  // Bytes of an initial row.

}  // namespace

class StripedTable::Source final : public RowSource {
 public:
  explicit Source(const StripedTable& table)
      : table_(table),
        locks_(table.stripes_),
        indexes_(IndexesOf(table.stripes_)) {}

  int64_t dim() const override { return table_.dim(); }
  ValueType type() const override { return table_.type(); }

  absl::StatusOr<int64_t> Locate(const int64_t* ids, int64_t n,
                                 const float** rows) const override {
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

  void FillMissing(int64_t id, float* row) const override {
    table_.missing_rows().FillFloats(id, row);
  }

 private:
  const StripedTable& table_;
  SharedLocks locks_;
  const StripeIndexes indexes_;
};

std::unique_ptr<RowSource> StripedTable::Read() const {
  return std::make_unique<Source>(*this);
}

void StripedTable::LookupFrom(KeySource* keys, void* values, bool* exists,
                              Executor* executor) const {
  SharedLocks locks(stripes_);
  keys->Begin();
  const StripeIndexes indexes = IndexesOf(stripes_);
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
      LookupRange<known>(indexes, *keys, begin, end, static_cast<char*>(values),
                         exists, streams);
    });
  });
}

template <int64_t kBytes>
void StripedTable::LookupRange(const StripeIndexes& indexes,
                               const KeySource& source, int64_t first,
                               int64_t last, char* values, bool* exists,
                               bool streams) const {
  const int64_t bytes = kBytes > 0 ? kBytes : layout_.value_bytes();
  alignas(64) char initial[kMostStreamed];
  const bool streamed = streams && bytes <= kMostStreamed;
  static_assert(kFindKeys <= KeySource::kMostKeys);
  int64_t buffers[2][kFindKeys];
  const float* rows[kFindKeys];
  int64_t hits = 0;
  const auto block = [&](int64_t begin) {
    return source.Block(begin, std::min(kFindKeys, last - begin),
                        buffers[begin / kFindKeys % 2]);
  };
  const int64_t* next = block(first);
  for (int64_t begin = first; begin < last; begin += kFindKeys) {
    const int64_t end = std::min(begin + kFindKeys, last);
    const int64_t* const keys = next;
    hits += FindRows(stripes_, *store_, indexes, keys, end - begin,
                     layout_.slots_begin(), rows);
    // Strings wait for theirs while these rows are on their way.
    if (end < last) next = block(end);
    for (int64_t i = begin; i < end; ++i) {
      const float* const row = rows[i - begin];
      char* value = values + i * bytes;
      if (row == nullptr) {
        missing_rows().Fill(keys[i - begin], streamed ? initial : value);
        if (streamed) StreamRow(initial, value, bytes);
      } else if (streams) {
        StreamRow(row, value, bytes);
      } else {
        CopyBytes(row, value, bytes);
      }
      if (exists != nullptr) exists[i] = row != nullptr;
    }
  }
  if (streams) StreamedRows();
  hits_.Add(hits);
  misses_.Add(last - first - hits);
}

}  // namespace tfembed
