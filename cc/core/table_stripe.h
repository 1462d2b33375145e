#ifndef TFEMBED_CORE_TABLE_STRIPE_H_
#define TFEMBED_CORE_TABLE_STRIPE_H_

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/hash_index.h"
#include "cc/core/row_store.h"
#include "cc/core/support/hash.h"

namespace tfembed {

// One of the kNumStripes parts of a table. Everything but the lock is guarded
// by the lock: shared for the const methods, exclusive for the others.
class TableStripe {
 public:
  std::shared_mutex& mutex() const { return mutex_; }

  // See HashIndex.
  void set_growth_phase(double phase) { index_.set_growth_phase(phase); }
  void set_index_pool(std::shared_ptr<ChunkPool> pool) {
    index_.set_pool(std::move(pool));
  }

  const HashIndex& index() const { return index_; }
  int64_t bytes() const { return index_.bytes() + pool_.bytes(); }

  // Room for `keys` keys in all.
  absl::Status ReserveIndex(int64_t keys) { return index_.Reserve(keys); }

  // A reservation is room for `keys` new keys in the index, kept for its owner
  // until released, so that a batch over many stripes fails before its first
  // write though it locks one stripe at a time. Rows: RowStore::Promise.
  // ResourceExhausted: nothing is reserved, the content is as it was.
  absl::Status Reserve(int64_t keys);
  void Release(int64_t keys);

  // Reserve, but that the owner calls Grow before its first insert. What all
  // owners released and none let grow is promised no more.
  absl::Status Promise(int64_t keys);
  void Grow() { index_.Grow(); }

  // Promise where there is room already; else false.
  bool PromiseFromRoom(int64_t keys);

  // Of `keys` more new keys, beside those that are reserved, how many the rows
  // of removed keys do not suffice for.
  int64_t CountFreshRows(int64_t keys) const {
    const int64_t lacks = std::max<int64_t>(0, reserved_ - pool_.num_free());
    return std::max<int64_t>(0, reserved_ + keys - pool_.num_free()) - lacks;
  }

  uint32_t Find(uint64_t hash, int64_t key) const {
    return index_.Find(hash, key);
  }

  // Sets *inserted. REQUIRES: reserved index and promised row, if it may
  // insert.
  uint32_t FindOrInsert(uint64_t hash, int64_t key, RowStore* store,
                        bool* inserted) {
    *inserted = false;
    return index_.FindOrInsert(hash, key, [this, store, inserted] {
      *inserted = true;
      return pool_.Take(store);
    });
  }

  // Whether the key was there.
  bool Erase(uint64_t hash, int64_t key);

  // Forgets keys, rows and their memory. REQUIRES: no reservations.
  void Clear();

  // The same, with room for `keys` keys; see HashIndex.
  absl::Status ClearFor(int64_t keys);

 private:
  mutable std::shared_mutex mutex_;
  HashIndex index_;
  RowPool pool_;
  int64_t reserved_ = 0;      // Keys.
  int64_t reservations_ = 0;  // How many owners reserved_ has.
};

using TableStripes = std::array<TableStripe, kNumStripes>;

// Lets new stripes be those of one table: their indexes share memory, and grow
// at different times.
void JoinStripes(TableStripes* stripes);

// Where the keys of each stripe begin among those of all, and how many these
// are. REQUIRES: the stripes' locks.
inline std::array<int64_t, kNumStripes + 1> FirstKeys(
    const TableStripes& stripes) {
  std::array<int64_t, kNumStripes + 1> begins = {};
  for (int s = 0; s < kNumStripes; ++s) {
    begins[s + 1] = begins[s] + stripes[s].index().size();
  }
  return begins;
}

// Locks of all stripes while it lives.
class SharedLocks {
 public:
  explicit SharedLocks(const TableStripes& stripes) : stripes_(stripes) {
    for (const TableStripe& stripe : stripes_) stripe.mutex().lock_shared();
  }
  SharedLocks(const SharedLocks&) = delete;
  SharedLocks& operator=(const SharedLocks&) = delete;
  ~SharedLocks() {
    for (const TableStripe& stripe : stripes_) stripe.mutex().unlock_shared();
  }

 private:
  const TableStripes& stripes_;
};

class ExclusiveLocks {
 public:
  explicit ExclusiveLocks(const TableStripes& stripes) : stripes_(stripes) {
    for (; held_ < kNumStripes; ++held_) stripes_[held_].mutex().lock();
  }
  // All, or none where somebody holds one: all_held().
  ExclusiveLocks(const TableStripes& stripes, std::try_to_lock_t)
      : stripes_(stripes) {
    while (held_ < kNumStripes && TryLock(&stripes_[held_].mutex())) ++held_;
    if (!all_held()) Unlock();
  }
  ExclusiveLocks(const ExclusiveLocks&) = delete;
  ExclusiveLocks& operator=(const ExclusiveLocks&) = delete;
  ~ExclusiveLocks() { Unlock(); }

  bool all_held() const { return held_ == kNumStripes; }

 private:
  // By a time limit that has passed: after a try_lock the C library may leave
  // readers asleep that wait for the lock (glibc's bug 23844, before 2.30).
  static bool TryLock(std::shared_mutex* mutex) {
    constexpr timespec kPast = {0, 0};
    auto* const lock = static_cast<pthread_rwlock_t*>(mutex->native_handle());
    return pthread_rwlock_timedwrlock(lock, &kPast) == 0;
  }

  void Unlock() {
    while (held_ > 0) stripes_[--held_].mutex().unlock();
  }

  const TableStripes& stripes_;
  int held_ = 0;  // The first ones.
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TABLE_STRIPE_H_
