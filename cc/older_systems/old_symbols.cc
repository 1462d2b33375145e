// Lets a library that is compiled here load on systems with glibc 2.27 and GCC
// 7's libstdc++, as TensorFlow's own does (manylinux_2_27).
//
// A linker binds a name to its newest version, which older systems lack. Each
// function below has such a name, is seen by this library alone, and calls the
// version that all systems have. The new versions differ from it in nothing
// that tfembed asks for: pow, log and log2 no longer set errno, locks and
// `stat` moved to another library. tests/test_packaging.py reads the versions
// that the built libraries ask for.
#if defined(__x86_64__) && defined(__linux__)

#include <pthread.h>
#include <sys/stat.h>

#include <ctime>
#include <exception>
#include <new>

#define TFEMBED_OLD(name, symbol) __asm__(".symver " #name ", " symbol)

namespace {

extern "C" {

TFEMBED_OLD(OldPow, "pow@GLIBC_2.2.5");
TFEMBED_OLD(OldLog, "log@GLIBC_2.2.5");
TFEMBED_OLD(OldLog2, "log2@GLIBC_2.2.5");
double OldPow(double base, double exponent);
double OldLog(double number);
double OldLog2(double number);

TFEMBED_OLD(OldTryLock, "pthread_mutex_trylock@GLIBC_2.2.5");
TFEMBED_OLD(OldReadLock, "pthread_rwlock_rdlock@GLIBC_2.2.5");
TFEMBED_OLD(OldWriteLock, "pthread_rwlock_wrlock@GLIBC_2.2.5");
TFEMBED_OLD(OldTimedWriteLock, "pthread_rwlock_timedwrlock@GLIBC_2.2.5");
TFEMBED_OLD(OldUnlock, "pthread_rwlock_unlock@GLIBC_2.2.5");
TFEMBED_OLD(OldSetClock, "pthread_condattr_setclock@GLIBC_2.3.3");
int OldTryLock(pthread_mutex_t* mutex);
int OldReadLock(pthread_rwlock_t* lock);
int OldWriteLock(pthread_rwlock_t* lock);
int OldTimedWriteLock(pthread_rwlock_t* lock, const timespec* end);
int OldUnlock(pthread_rwlock_t* lock);
int OldSetClock(pthread_condattr_t* attributes, clockid_t clock);

// Before glibc 2.33, `stat` and `lstat` are compiled into the caller and call
// these, with the version of the kernel's struct.
TFEMBED_OLD(OldStat, "__xstat@GLIBC_2.2.5");
TFEMBED_OLD(OldLinkStat, "__lxstat@GLIBC_2.2.5");
int OldStat(int version, const char* path, struct stat* file);
int OldLinkStat(int version, const char* path, struct stat* file);
constexpr int kKernelsStruct = 1;

// The copy constructor and the destructor of std::exception_ptr. GCC 11 and
// later compile them into the caller, which then calls _M_addref or _M_release.
TFEMBED_OLD(OldCopy,
            "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3");
TFEMBED_OLD(OldDestroy,
            "_ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");
void OldCopy(void* copy, const void* original);
void OldDestroy(void* pointer);
}

}  // namespace

extern "C" {

#pragma GCC visibility push(hidden)

double pow(double base, double exponent) noexcept {
  return OldPow(base, exponent);
}
double log(double number) noexcept { return OldLog(number); }
double log2(double number) noexcept { return OldLog2(number); }

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  return OldTryLock(mutex);
}
int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  return OldReadLock(lock);
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  return OldWriteLock(lock);
}
int pthread_rwlock_timedwrlock(pthread_rwlock_t* lock,
                               const timespec* end) noexcept {
  return OldTimedWriteLock(lock, end);
}
int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  return OldUnlock(lock);
}
int pthread_condattr_setclock(pthread_condattr_t* attributes,
                              clockid_t clock) noexcept {
  return OldSetClock(attributes, clock);
}

int stat(const char* path, struct stat* file) noexcept {
  return OldStat(kKernelsStruct, path, file);
}
int lstat(const char* path, struct stat* file) noexcept {
  return OldLinkStat(kKernelsStruct, path, file);
}

// Asked by std::shared_ptr, whether it may count without atomic instructions.
char __libc_single_threaded = 0;

void ExceptionAddRef(const void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void ExceptionRelease(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

void ExceptionAddRef(const void* pointer) {
  void* copy;  // Is never destroyed: its reference is the one that is added.
  OldCopy(&copy, pointer);
}
void ExceptionRelease(void* pointer) { OldDestroy(pointer); }

#pragma GCC visibility pop
}

namespace std {

__attribute__((visibility("hidden"))) void __throw_bad_array_new_length() {
  throw std::bad_array_new_length();
}

}  // namespace std

#endif  // x86-64
