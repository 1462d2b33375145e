#ifndef TFEMBED_CORE_TABLE_ROW_STORE_H_
#define TFEMBED_CORE_TABLE_ROW_STORE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cc/core/rows/row_addresses.h"
#include "cc/core/support/memory_block.h"
#include "cc/core/support/mutex.h"

namespace tfembed {

// Rows [begin, end), by number.
struct RowRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  int64_t size() const { return int64_t{end} - int64_t{begin}; }
};

// The rows of a table, `width` words of 4 bytes each, by number. Rows are
// contiguous in slabs of 16 to 32 MB on huge pages (the first 2 MB of the first
// slab on small pages, for small tables) and do not move until Replace or
// Clear. Rows are handed out in ranges and never returned: RowPool recycles
// them.
//
// Thread-safe: Promise, Withdraw, Take, num_rows. Row may be called for rows of
// ranges that the caller got under a lock. All other methods need exclusive use
// of the store.
class RowStore {
 public:
  static constexpr int64_t kMaxRows = (int64_t{1} << 32) - 2;

  // REQUIRES: width >= 1. ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<RowStore>> Create(int64_t width);

  int64_t width() const { return width_; }

  RowAddresses addresses() const {
    return {slabs_, width_, slab_shift_, slab_mask_};
  }

  float* Row(uint32_t row) const { return addresses().Row(row); }

  // Makes sure that `rows` more rows can be taken, until Withdraw(rows). A
  // promise costs addresses, no memory: callers that know how many rows they
  // will take ask MemoryPromise for it. Returns the bytes of the rows that have
  // no memory yet. ResourceExhausted: nothing is promised.
  absl::StatusOr<int64_t> Promise(int64_t rows);
  void Withdraw(int64_t rows);

  // Hands out 1 to `wanted` rows, with any content; no more than 1 where others
  // have been promised the rest. REQUIRES: the caller was promised a row.
  RowRange Take(int64_t wanted);

  // Rows handed out: the numbers below this one.
  int64_t num_rows() const;

  int64_t BytesOf(int64_t rows) const {
    return rows * width_ * static_cast<int64_t>(sizeof(float));
  }

  // Puts `words` in place of the `count` words from `at` on of all rows that
  // were handed out, slab by slab: what else they hold stays.
  // ResourceExhausted leaves all as it was.
  // REQUIRES: at + count <= width(), and a width of 1 or more remains.
  absl::Status Replace(int64_t at, int64_t count,
                       absl::Span<const float> words);

  // Takes all rows back and gives the memory to the system, but for what
  // `kept_rows` rows need.
  void Clear(int64_t kept_rows = 0);

 private:
  explicit RowStore(int64_t width);

  int64_t MappedRows() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::min<int64_t>(memory_.size() << slab_shift_, kMaxRows);
  }
  absl::StatusOr<MemoryBlock> AllocateSlab(int64_t slab, int64_t width) const;
  void ReplaceInSlab(int64_t slab, int64_t at, int64_t count,
                     absl::Span<const float> words, MemoryBlock to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  int64_t width_;
  int slab_shift_;
  uint32_t slab_mask_;
  MemoryBlock slab_addresses_;  // Large enough for kMaxRows, so never moved.
  float** slabs_ = nullptr;     // The same.
  mutable Mutex mutex_;
  std::vector<MemoryBlock> memory_ ABSL_GUARDED_BY(mutex_);  // By slab.
  int64_t next_row_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t backed_rows_ ABSL_GUARDED_BY(mutex_) = 0;  // Taken at some time.
  int64_t promised_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The rows that one stripe may use next: the rest of its last range, and
// the rows of removed keys, which go first. Not thread-safe.
//
// A pool takes rows from the store when it is empty, even if the pools of other
// stripes have rows. A table that must not have more rows than keys moves rows
// between pools before it inserts: MoveTo and Fill.
class RowPool {
 public:
  RowPool() = default;
  RowPool(const RowPool&) = delete;
  RowPool& operator=(const RowPool&) = delete;
  ~RowPool();

  int64_t available() const { return num_free_ + fresh_.size(); }

  // Rows of removed keys, whose memory is there.
  int64_t num_free() const { return num_free_; }
  int64_t bytes() const { return free_capacity_ * sizeof(uint32_t); }

  // REQUIRES: available() > 0, or the store promised a row.
  uint32_t Take(RowStore* store);

  // If there is no memory to store its number, the row is unused until Clear.
  void Return(uint32_t row);

  // Gives rows away until `to` has `wanted` or this pool only `kept`.
  void MoveTo(RowPool* to, int64_t wanted, int64_t kept);

  // Has `rows` rows available: from `spare` as long as it has some, then from
  // the store, and no more. REQUIRES: the store promised them.
  void Fill(int64_t rows, RowPool* spare, RowStore* store);

  // Forgets all rows.
  void Clear();

 private:
  // REQUIRES: available() > 0.
  uint32_t TakeOwn() {
    return num_free_ > 0 ? free_[--num_free_] : fresh_.begin++;
  }

  uint32_t* free_ = nullptr;  // From malloc, which can grow it in place.
  int64_t num_free_ = 0;
  int64_t free_capacity_ = 0;
  RowRange fresh_;         // The rest of the last range.
  int64_t num_taken_ = 0;  // Rows that ever came from the store.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_ROW_STORE_H_
