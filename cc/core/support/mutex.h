#ifndef TFEMBED_CORE_SUPPORT_MUTEX_H_
#define TFEMBED_CORE_SUPPORT_MUTEX_H_

#include <pthread.h>
#include <time.h>

#include <chrono>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"

// The locks of the standard library, in types that clang's -Wthread-safety
// knows: `make lint` checks who holds which lock where. The methods have the
// standard library's names, so that std::unique_lock and std::shared_lock take
// these locks where the analysis cannot follow (locks that move).
namespace tfembed {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool try_lock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) {
    return mutex_.try_lock();
  }

  // No code: tells the analysis what it cannot see. REQUIRES: the lock is held.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

 private:
  friend class Condition;

  std::mutex mutex_;
};

class ABSL_LOCKABLE SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  void lock_shared() ABSL_SHARED_LOCK_FUNCTION() { mutex_.lock_shared(); }
  void unlock_shared() ABSL_UNLOCK_FUNCTION() { mutex_.unlock_shared(); }

  // No code: tell the analysis what it cannot see. REQUIRES: the lock is held.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}
  void AssertReaderHeld() const ABSL_ASSERT_SHARED_LOCK() {}

 private:
  std::shared_mutex mutex_;
};

// Hold a lock while they live.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(*mutex) {
    mutex_.lock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

class ABSL_SCOPED_LOCKABLE WriterLock {
 public:
  explicit WriterLock(SharedMutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(*mutex) {
    mutex_.lock();
  }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;
  ~WriterLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  SharedMutex& mutex_;
};

class ABSL_SCOPED_LOCKABLE ReaderLock {
 public:
  explicit ReaderLock(SharedMutex* mutex) ABSL_SHARED_LOCK_FUNCTION(mutex)
      : mutex_(*mutex) {
    mutex_.lock_shared();
  }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;
  ~ReaderLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock_shared(); }

 private:
  SharedMutex& mutex_;
};

// A rule that no single lock stands for, such as "any one of these locks is
// held". No code: it is taken by the annotations of locks, or asserted.
class ABSL_LOCKABLE LockRole {
 public:
  void AssertReaderHeld() const ABSL_ASSERT_SHARED_LOCK() {}
};

// A condition of what a Mutex guards. Wait may return for no reason: callers
// look at the condition in a loop, under the lock.
//
// By POSIX calls: std::condition_variable waits by functions that the C library
// has since 2.30 only, and wheels are for older ones too.
class Condition {
 public:
  Condition() {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed_, &attributes);
    pthread_condattr_destroy(&attributes);
  }
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  ~Condition() { pthread_cond_destroy(&changed_); }

  void NotifyOne() { pthread_cond_signal(&changed_); }
  void NotifyAll() { pthread_cond_broadcast(&changed_); }

  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    pthread_cond_wait(&changed_, mutex->mutex_.native_handle());
  }

  // Waits until `end` at most; false once that has passed.
  bool WaitUntil(Mutex* mutex, std::chrono::steady_clock::time_point end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    // libstdc++'s steady clock is CLOCK_MONOTONIC.
    const auto since_start = end.time_since_epoch();
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(since_start);
    const timespec limit = {
        static_cast<time_t>(seconds.count()),
        static_cast<long>(
            std::chrono::nanoseconds(since_start - seconds)  // NOLINT
                .count())};
    return pthread_cond_timedwait(&changed_, mutex->mutex_.native_handle(),
                                  &limit) == 0;
  }

 private:
  pthread_cond_t changed_;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_MUTEX_H_
