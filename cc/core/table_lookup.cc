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

void StripedTable::Lookup(absl::Span<const int64_t> keys, void* values,
                          bool* exists, Executor* executor) const {
  SharedLocks locks(stripes_);
  const StripeIndexes indexes = IndexesOf(stripes_);
  const int64_t bytes = layout_.value_bytes();
  const int64_t n = keys.size();
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
    const auto of_task =
        keys.subspan(begin, is_large ? kKeysPerTask : kKeysPerSmallTask);
    WithKnownBytes(bytes, [&](auto known) {
      LookupRange<known>(indexes, of_task,
                         static_cast<char*>(values) + begin * bytes,
                         exists == nullptr ? nullptr : exists + begin, streams);
    });
  });
}

template <int64_t kBytes>
void StripedTable::LookupRange(const StripeIndexes& indexes,
                               absl::Span<const int64_t> keys, char* values,
                               bool* exists, bool streams) const {
  const int64_t bytes = kBytes > 0 ? kBytes : layout_.value_bytes();
  alignas(64) char initial[kMostStreamed];
  const bool streamed = streams && bytes <= kMostStreamed;
  const int64_t n = keys.size();
  const float* rows[kFindKeys];
  int64_t hits = 0;
  for (int64_t begin = 0; begin < n; begin += kFindKeys) {
    const int64_t end = std::min(begin + kFindKeys, n);
    PrefetchIds(keys.data(), end, std::min(end + kFindKeys, n));
    hits += FindRows(stripes_, *store_, indexes, keys.data() + begin,
                     end - begin, layout_.slots_begin(), rows);
    for (int64_t i = begin; i < end; ++i) {
      const float* const row = rows[i - begin];
      char* value = values + i * bytes;
      if (row == nullptr) {
        missing_rows().Fill(keys[i], streamed ? initial : value);
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
  misses_.Add(n - hits);
}

}  // namespace tfembed
