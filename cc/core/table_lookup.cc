#include <algorithm>
#include <memory>

#include "cc/core/striped_table.h"
#include "cc/core/support/known_bytes.h"
#include "cc/core/support/overlap.h"

namespace tfembed {
namespace {

constexpr int64_t kKeysPerTask = 4096;
constexpr int64_t kKeysPerSmallTask = 1024;
constexpr int64_t kMostStreamed = 4096;  // Bytes of an initial row.

}  // namespace

// Calls found(i, row of keys[i] or null) in order, each row prefetched. A value
// has kBytes, or any number for 0.
template <int64_t kBytes, typename Found>
void StripedTable::LocateRange(const int64_t* keys, int64_t n,
                               Found found) const {
  const int64_t words =
      kBytes > 0 ? kBytes / RowLayout::kWordBytes : layout_.slots_begin();
  const HashIndex::Bucket* homes[kOverlap];
  const float* rows[kOverlap];
  const auto set_row = [&](int64_t i, uint32_t row) {
    rows[Slot(i)] = store_->Row(row);
    PrefetchRow<false>(rows[Slot(i)], words);
  };
  Overlap(
      n,
      [&](int64_t i) {
        const uint64_t hash = HashKey(keys[i]);
        homes[Slot(i)] = stripe(hash).index().Home(hash);
        HashIndex::Prefetch(homes[Slot(i)]);
      },
      [&](int64_t i) {
        const HashIndex::Bucket*& home = homes[Slot(i)];
        const uint32_t row = HashIndex::FindIn(*home, keys[i]);
        rows[Slot(i)] = nullptr;
        if (row != HashIndex::kNoRow) {
          set_row(i, row);
          home = nullptr;  // Settled.
        } else if (home->overflow != 0) {
          __builtin_prefetch(home + 1);
        } else {
          home = nullptr;
        }
      },
      [&](int64_t i) {
        if (homes[Slot(i)] == nullptr) return;
        const HashIndex& index = stripe(HashKey(keys[i])).index();
        const uint32_t row = index.FindPast(homes[Slot(i)], keys[i]);
        if (row != HashIndex::kNoRow) set_row(i, row);
      },
      [&](int64_t i) { found(i, rows[Slot(i)]); });
}

class StripedTable::Source final : public RowSource {
 public:
  explicit Source(const StripedTable& table)
      : table_(table), locks_(table.stripes_) {}

  int64_t dim() const override { return table_.dim(); }
  ValueType type() const override { return table_.type(); }

  absl::Status Locate(const int64_t* ids, int64_t n,
                      const float** rows) const override {
    int64_t hits = 0;
    table_.LocateRange<0>(ids, n, [rows, &hits](int64_t i, const float* row) {
      rows[i] = row;
      hits += row != nullptr;
    });
    table_.hits_.Add(hits);
    table_.misses_.Add(n - hits);
    return absl::OkStatus();
  }

  void FillMissing(int64_t id, float* row) const override {
    table_.missing_rows().FillFloats(id, row);
  }

 private:
  const StripedTable& table_;
  SharedLocks locks_;
};

std::unique_ptr<RowSource> StripedTable::Read() const {
  return std::make_unique<Source>(*this);
}

void StripedTable::Lookup(absl::Span<const int64_t> keys, void* values,
                          bool* exists, Executor* executor) const {
  SharedLocks locks(stripes_);
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
      LookupRange<known>(of_task, static_cast<char*>(values) + begin * bytes,
                         exists == nullptr ? nullptr : exists + begin, streams);
    });
  });
}

template <int64_t kBytes>
void StripedTable::LookupRange(absl::Span<const int64_t> keys, char* values,
                               bool* exists, bool streams) const {
  const int64_t bytes = kBytes > 0 ? kBytes : layout_.value_bytes();
  alignas(64) char initial[kMostStreamed];
  const bool streamed = streams && bytes <= kMostStreamed;
  int64_t hits = 0;
  LocateRange<kBytes>(
      keys.data(), keys.size(), [&](int64_t i, const float* row) {
        hits += row != nullptr;
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
      });
  if (streams) StreamedRows();
  hits_.Add(hits);
  misses_.Add(static_cast<int64_t>(keys.size()) - hits);
}

}  // namespace tfembed
