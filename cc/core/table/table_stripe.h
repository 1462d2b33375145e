#ifndef TFEMBED_CORE_TABLE_TABLE_STRIPE_H_
#define TFEMBED_CORE_TABLE_TABLE_STRIPE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/policies/admission.h"
#include "cc/core/simd/dispatch.h"
#include "cc/core/simd/hash_bucket.h"
#include "cc/core/support/hash.h"
#include "cc/core/support/mutex.h"
#include "cc/core/table/hash_index.h"
#include "cc/core/table/row_store.h"

namespace tfembed {

// One of the kNumStripes parts of a table. Its lock guards all other members.
class TableStripe {
 public:
  SharedMutex& mutex() const ABSL_LOCK_RETURNED(mutex_) { return mutex_; }

  const HashIndex& index() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return index_;
  }
  int64_t bytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return index_.bytes() + pool_.bytes();
  }

  // Lets the index grow at a time of its own, in memory that it shares with the
  // other stripes; see HashIndex.
  void Join(double growth_phase, std::shared_ptr<ChunkPool> pool)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    index_.set_growth_phase(growth_phase);
    index_.set_pool(std::move(pool));
  }

  // See HashIndex.
  void SetUsualKeys(int64_t keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    index_.set_usual_keys(keys);
  }

  // Room for `keys` keys in all.
  absl::Status ReserveIndex(int64_t keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return index_.Reserve(keys);
  }

  // A reservation is room for `keys` new keys in the index, kept for its owner
  // until released, so that a batch over many stripes fails before its first
  // write though it locks one stripe at a time. Rows: RowStore::Promise.
  // ResourceExhausted: nothing is reserved, the content is as it was.
  absl::Status Reserve(int64_t keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(int64_t keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // As Reserve, but the owner calls Grow before its first insert. When the last
  // owner releases its keys and nobody has called Grow, the room is withdrawn.
  absl::Status Promise(int64_t keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { index_.Grow(); }

  // Promises where there is room already; else returns false.
  bool PromiseFromRoom(int64_t keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // How many of `keys` more new keys, beside those that are reserved, need a
  // row that no removed key has left behind.
  int64_t CountFreshRows(int64_t keys) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const int64_t lacks = std::max<int64_t>(0, reserved_ - pool_.num_free());
    return std::max<int64_t>(0, reserved_ + keys - pool_.num_free()) - lacks;
  }

  // The rows of removed keys, and those that the store gave for new ones.
  const RowPool& rows() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return pool_;
  }
  RowPool* mutable_rows() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return &pool_;
  }

  uint32_t Find(uint64_t hash, int64_t key) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return index_.Find(hash, key);
  }

  // Sets *inserted. REQUIRES: reserved index and promised row, if it may
  // insert.
  uint32_t FindOrInsert(uint64_t hash, int64_t key, RowStore* store,
                        bool* inserted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    *inserted = false;
    RowPool* const pool = &pool_;
    return index_.FindOrInsert(hash, key, [pool, store, inserted] {
      *inserted = true;
      return pool->Take(store);
    });
  }

  // Whether the key was there.
  bool Erase(uint64_t hash, int64_t key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Forgets keys, rows and their memory. REQUIRES: no reservations.
  void Clear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The same, with room for `keys` keys; see HashIndex.
  absl::Status ClearFor(int64_t keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Decides which new keys training inserts; null: all of them.
  const AdmissionFilter* filter() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return filter_.get();
  }
  AdmissionFilter* mutable_filter() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return filter_.get();
  }
  void SetFilter(std::unique_ptr<AdmissionFilter> filter)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    filter_ = std::move(filter);
  }

 private:
  mutable SharedMutex mutex_;
  HashIndex index_ ABSL_GUARDED_BY(mutex_);
  RowPool pool_ ABSL_GUARDED_BY(mutex_);
  int64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;      // Keys.
  int64_t reservations_ ABSL_GUARDED_BY(mutex_) = 0;  // Owners of reserved_.
  std::unique_ptr<AdmissionFilter> filter_ ABSL_GUARDED_BY(mutex_);
};

// The stripes of one table. Their indexes share memory, and grow at different
// times. For the thread-safety analysis the stripes as a whole are a lock too:
// SharedLocks and ExclusiveLocks acquire it with the locks of all stripes.
//
// A SharedMutex lets readers past a writer that waits: a few busy readers could
// keep writers of many stripes waiting for minutes. So such a writer has the
// turn, a lock that comes before those of the stripes, while it waits for
// these, and readers that come meanwhile wait for their turn behind the writer.
// Who reads for long has the turn, shared, as long as the stripes: writers
// wait for such readers before it is their turn, and hold nobody up.
class ABSL_LOCKABLE TableStripes {
 public:
  TableStripes();

  TableStripe& operator[](int64_t s) { return stripes_[s]; }
  const TableStripe& operator[](int64_t s) const { return stripes_[s]; }
  TableStripe* begin() { return stripes_.data(); }
  TableStripe* end() { return stripes_.data() + kNumStripes; }

  // The role of a holder of any stripe's lock: no other thread holds all of
  // them exclusively.
  const LockRole& any() const ABSL_LOCK_RETURNED(any_) { return any_; }

  // No code; see mutex.h.
  void AssertReaderHeld() const ABSL_ASSERT_SHARED_LOCK() {}

  // The callers of these hold the locks of all stripes.
  const HashIndex& index(int64_t s) const ABSL_SHARED_LOCKS_REQUIRED(this) {
    stripes_[s].mutex().AssertReaderHeld();
    return stripes_[s].index();
  }
  const AdmissionFilter* filter(int64_t s) const
      ABSL_SHARED_LOCKS_REQUIRED(this) {
    stripes_[s].mutex().AssertReaderHeld();
    return stripes_[s].filter();
  }
  int64_t bytes() const ABSL_SHARED_LOCKS_REQUIRED(this);

  // Tells each stripe how many keys it hardly ever exceeds.
  void SetUsualKeys(int64_t keys);

  // Where the keys of each stripe begin among those of all, and how many keys
  // there are.
  std::array<int64_t, kNumStripes + 1> FirstKeys() const
      ABSL_SHARED_LOCKS_REQUIRED(this);

  // Where the searches in all stripes begin, as long as the locks are held.
  StripeIndexes Indexes() const ABSL_SHARED_LOCKS_REQUIRED(this);

 private:
  friend class SharedLocks;
  friend class WriterTurn;

  std::array<TableStripe, kNumStripes> stripes_;
  mutable SharedMutex turn_;
  mutable std::atomic<bool> is_writers_turn_{false};
  LockRole any_;
};

// Hold the lock of one stripe while they live.
class ABSL_SCOPED_LOCKABLE StripeLock {
 public:
  StripeLock(const TableStripes& stripes, const TableStripe& stripe)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(stripe.mutex())
          ABSL_SHARED_LOCK_FUNCTION(stripes.any())
      : mutex_(stripe.mutex()) {
    mutex_.lock();
  }
  StripeLock(const StripeLock&) = delete;
  StripeLock& operator=(const StripeLock&) = delete;
  ~StripeLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  SharedMutex& mutex_;
};

class ABSL_SCOPED_LOCKABLE StripeReaderLock {
 public:
  StripeReaderLock(const TableStripes& stripes, const TableStripe& stripe)
      ABSL_SHARED_LOCK_FUNCTION(stripe.mutex(), stripes.any())
      : mutex_(stripe.mutex()) {
    mutex_.lock_shared();
  }
  StripeReaderLock(const StripeReaderLock&) = delete;
  StripeReaderLock& operator=(const StripeReaderLock&) = delete;
  ~StripeReaderLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock_shared(); }

 private:
  SharedMutex& mutex_;
};

// Whether a reader is done as soon as a lookup, or goes through all rows or
// waits for others, such as a disk.
enum class Stay { kShort, kLong };

// Hold the locks of all stripes while they live. The analysis does not follow
// loops over locks.
class ABSL_SCOPED_LOCKABLE SharedLocks {
 public:
  explicit SharedLocks(const TableStripes& stripes, Stay stay = Stay::kShort)
      ABSL_SHARED_LOCK_FUNCTION(stripes, stripes.any())
      : stripes_(stripes), stay_(stay) {
    const bool waits =
        stripes_.is_writers_turn_.load(std::memory_order_relaxed);
    if (stay_ == Stay::kLong || waits) stripes_.turn_.lock_shared();
    if (stay_ == Stay::kShort && waits) stripes_.turn_.unlock_shared();
    for (int s = 0; s < kNumStripes; ++s) stripes_[s].mutex().lock_shared();
  }
  SharedLocks(const SharedLocks&) = delete;
  SharedLocks& operator=(const SharedLocks&) = delete;
  ~SharedLocks() ABSL_UNLOCK_FUNCTION() {
    for (int s = 0; s < kNumStripes; ++s) stripes_[s].mutex().unlock_shared();
    if (stay_ == Stay::kLong) stripes_.turn_.unlock_shared();
  }

 private:
  const TableStripes& stripes_;
  const Stay stay_;
};

// The turn of a writer that waits for the locks of several stripes.
class WriterTurn {
 public:
  explicit WriterTurn(const TableStripes& stripes) : stripes_(stripes) {
    stripes_.turn_.lock();
    stripes_.is_writers_turn_.store(true, std::memory_order_relaxed);
  }
  WriterTurn(const WriterTurn&) = delete;
  WriterTurn& operator=(const WriterTurn&) = delete;
  ~WriterTurn() {
    stripes_.is_writers_turn_.store(false, std::memory_order_relaxed);
    stripes_.turn_.unlock();
  }

 private:
  const TableStripes& stripes_;
};

class ABSL_SCOPED_LOCKABLE ExclusiveLocks {
 public:
  explicit ExclusiveLocks(const TableStripes& stripes)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(stripes, stripes.any())
      : stripes_(stripes) {
    const WriterTurn turn(stripes_);
    for (int s = 0; s < kNumStripes; ++s) stripes_[s].mutex().lock();
  }
  ExclusiveLocks(const ExclusiveLocks&) = delete;
  ExclusiveLocks& operator=(const ExclusiveLocks&) = delete;
  // Readers begin at the first stripe, and then find all others free.
  ~ExclusiveLocks() ABSL_UNLOCK_FUNCTION() {
    for (int s = kNumStripes; s-- > 0;) stripes_[s].mutex().unlock();
  }

 private:
  const TableStripes& stripes_;
};

using StripeSet = std::bitset<kNumStripes>;

// The locks of the stripes that a batch writes to, exclusively, from Lock to
// Unlock or the destructor. They are taken in the order of stripes, as by all
// who hold several, so that nobody waits in a circle. The analysis does not
// follow sets of locks: their holder asserts them.
class StripeSetLocks {
 public:
  StripeSetLocks(const TableStripes& stripes, const StripeSet& set)
      : stripes_(stripes), set_(set) {}
  StripeSetLocks(const StripeSetLocks&) = delete;
  StripeSetLocks& operator=(const StripeSetLocks&) = delete;
  ~StripeSetLocks() { Unlock(); }

  // Waits for all of them; nothing where they are held already.
  void Lock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (std::exchange(are_held_, true)) return;
    const WriterTurn turn(stripes_);
    for (int s = 0; s < kNumStripes; ++s) {
      if (set_[s]) stripes_[s].mutex().lock();
    }
  }

  void Unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!std::exchange(are_held_, false)) return;
    for (int s = kNumStripes; s-- > 0;) {
      if (set_[s]) stripes_[s].mutex().unlock();
    }
  }

 private:
  const TableStripes& stripes_;
  const StripeSet set_;
  bool are_held_ = false;
};

// Lookups and training find keys in blocks, by the loops of simd/find.inc: a
// key costs two cache misses, its bucket and its row, and a core can have some
// 24 misses in flight. First all buckets are prefetched, then they are read and
// the rows are prefetched, then come the few keys in other buckets. Smaller
// blocks leave the memory idle while the last bucket of each is awaited; larger
// blocks exceed the caches (docs/lab/loops.md).
inline constexpr int64_t kFindKeys = FindBlock::kMostKeys;

// Sets what the kernels find keys by; `rows`, `floats_to_fetch` and `next` are
// left as they are. REQUIRES: n <= kFindKeys.
void SetKeys(const RowStore& store, const StripeIndexes& indexes,
             const int64_t* keys, int64_t n, FindBlock* block);

// Sets block->rows, and asks for the first `floats_to_fetch` of each. Returns
// how many keys were found. REQUIRES: all `homes` of the block are set.
int64_t FindAskedFor(const TableStripes& stripes, const RowStore& store,
                     FindBlock* block) ABSL_SHARED_LOCKS_REQUIRED(stripes);

// Asks for the buckets that the keys may be in which find_at_homes did not
// find. For writes, which may go on to insert these keys; reads look past few
// homes, and at once.
void AskPastHomes(const FindBlock& block, int64_t num_unsettled);

// Sets rows[i] to the row of keys[i], or to null, and asks for its first
// `floats`. Returns how many keys were found. REQUIRES: n <= kFindKeys.
int64_t FindRows(const TableStripes& stripes, const RowStore& store,
                 const StripeIndexes& indexes, const int64_t* keys, int64_t n,
                 int64_t floats, const float** rows)
    ABSL_SHARED_LOCKS_REQUIRED(stripes);

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_TABLE_STRIPE_H_
