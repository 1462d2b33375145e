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

// Finds the row of each key, or null, and asks for it. rows[i & mask] is then
// that of key i until found(i) has been called, in order. Returns how many
// there were. A value has kBytes, or any number for 0.
template <int64_t kBytes, typename Found>
int64_t StripedTable::LocateRange(const int64_t* keys, int64_t n,
                                  const float** rows, int64_t mask,
                                  Found found) const {
  const int64_t words =
      kBytes > 0 ? kBytes / RowLayout::kWordBytes : layout_.slots_begin();
  const RowStore::Addresses addresses = store_->addresses();
  const HashIndex::Bucket* homes[kOverlap];
  int64_t misses = 0;
  const auto set_row = [&](int64_t i, uint32_t row) {
    const float* const address = addresses.Row(row);
    rows[i & mask] = address;
    PrefetchRow(address, words);
  };
  InBlocks(
      n,
      [&](int64_t i) {
        const uint64_t hash = HashKey(keys[i]);
        homes[Slot(i)] = stripe(hash).index().Home(hash);
        HashIndex::Prefetch(homes[Slot(i)]);
      },
      [&](int64_t i) {
        const HashIndex::Bucket* const home = homes[Slot(i)];
        const uint32_t row = HashIndex::FindIn(*home, keys[i]);
        if (row == HashIndex::kNoRow) {
          if (home->overflow != 0) __builtin_prefetch(home + 1);
          return false;
        }
        set_row(i, row);
        return true;
      },
      [&](int64_t i) {
        const HashIndex::Bucket* const home = homes[Slot(i)];
        uint32_t row = HashIndex::kNoRow;
        if (home->overflow != 0) {
          row = stripe(HashKey(keys[i])).index().FindPast(home, keys[i]);
        }
        if (row != HashIndex::kNoRow) {
          set_row(i, row);
        } else {
          rows[i & mask] = nullptr;
          ++misses;
        }
      },
      found);
  return n - misses;
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
    WithKnownBytes(table_.layout_.value_bytes(), [&](auto known) {
      hits = table_.LocateRange<known>(ids, n, rows, /*mask=*/-1,
                                       [](int64_t /*i*/) {});
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
  const float* rows[kOverlap];
  const int64_t hits = LocateRange<kBytes>(
      keys.data(), keys.size(), rows, kOverlap - 1, [&](int64_t i) {
        const float* const row = rows[Slot(i)];
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
