/* Lets one system call that concerns a folder fail, the n-th, or all from the
   n-th on. Preloaded (LD_PRELOAD) into a process, which says by the functions
   `failing_calls_*` which.

   A call concerns the folder if its path begins with the folder's, or if its
   file was opened so. What fails has not happened; but a file that fails to be
   closed is closed, and what stdio had not written of it is lost. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_FILES 65536

static char folder[4096];
static size_t folder_length;
static atomic_int is_on;
static atomic_int is_paused;
static atomic_long calls;
static long first_to_fail;
static int all_after;
static int error_to_give;
static char failed_call[4200];
static atomic_char is_ours[MOST_FILES];

void failing_calls_begin(const char* path, long first, int all, int error) {
  folder_length = strlen(path);
  memcpy(folder, path, folder_length + 1);
  first_to_fail = first;
  all_after = all;
  error_to_give = error;
  failed_call[0] = 0;
  atomic_store(&calls, 0);
  atomic_store(&is_on, 1);
}

/* Until it is called with 0 nothing is counted, and nothing fails. */
void failing_calls_pause(int pause) { atomic_store(&is_paused, pause); }

/* How many calls there were. */
long failing_calls_end(void) {
  atomic_store(&is_on, 0);
  for (int file = 0; file < MOST_FILES; ++file) atomic_store(&is_ours[file], 0);
  return atomic_load(&calls);
}

/* The first that failed, "" if none did. */
const char* failing_calls_failed(void) { return failed_call; }

static int concerns(const char* path) {
  return atomic_load(&is_on) && path != NULL &&
         strncmp(path, folder, folder_length) == 0;
}

static int fails(const char* call, const char* what) {
  if (atomic_load(&is_paused)) return 0;
  const long number = atomic_fetch_add(&calls, 1);
  if (number != first_to_fail && !(all_after && number > first_to_fail)) {
    return 0;
  }
  if (number == first_to_fail) {
    snprintf(failed_call, sizeof(failed_call), "%s %s", call, what);
  }
  errno = error_to_give;
  return 1;
}

static int path_fails(const char* call, const char* path) {
  return concerns(path) && fails(call, path + folder_length);
}

static int is_our_file(int file) {
  return atomic_load(&is_on) && 0 <= file && file < MOST_FILES &&
         atomic_load(&is_ours[file]);
}

static int file_fails(const char* call, int file) {
  if (!is_our_file(file)) return 0;
  const int before = errno;
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t n = readlink(link, path, sizeof(path) - 1);
  path[n < 0 ? 0 : n] = 0;
  errno = before;
  return fails(call,
               strlen(path) > folder_length ? path + folder_length : path);
}

static int opened(int file, const char* path) {
  if (0 <= file && file < MOST_FILES) {
    atomic_store(&is_ours[file], concerns(path) ? 1 : 0);
  }
  return file;
}

/* What the next library calls so. */
#define REAL(result, name, ...)       \
  static result (*real)(__VA_ARGS__); \
  if (real == NULL) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPEN(name)                                 \
  int name(const char* path, int flags, ...) {     \
    REAL(int, name, const char*, int, ...);        \
    va_list arguments;                             \
    va_start(arguments, flags);                    \
    const mode_t mode = va_arg(arguments, mode_t); \
    va_end(arguments);                             \
    if (path_fails("open", path)) return -1;       \
    return opened(real(path, flags, mode), path);  \
  }
OPEN(open)
OPEN(open64)

#define OPEN_AT(name)                                  \
  int name(int at, const char* path, int flags, ...) { \
    REAL(int, name, int, const char*, int, ...);       \
    va_list arguments;                                 \
    va_start(arguments, flags);                        \
    const mode_t mode = va_arg(arguments, mode_t);     \
    va_end(arguments);                                 \
    if (path_fails("openat", path)) return -1;         \
    return opened(real(at, path, flags, mode), path);  \
  }
OPEN_AT(openat)
OPEN_AT(openat64)

#define CREATE(name)                          \
  int name(const char* path, mode_t mode) {   \
    REAL(int, name, const char*, mode_t);     \
    if (path_fails("creat", path)) return -1; \
    return opened(real(path, mode), path);    \
  }
CREATE(creat)
CREATE(creat64)

#define OPEN_STREAM(name)                             \
  FILE* name(const char* path, const char* mode) {    \
    REAL(FILE*, name, const char*, const char*);      \
    if (path_fails("fopen", path)) return NULL;       \
    FILE* stream = real(path, mode);                  \
    if (stream != NULL) opened(fileno(stream), path); \
    return stream;                                    \
  }
OPEN_STREAM(fopen)
OPEN_STREAM(fopen64)

DIR* opendir(const char* path) {
  REAL(DIR*, opendir, const char*);
  if (path_fails("opendir", path)) return NULL;
  DIR* stream = real(path);
  if (stream != NULL) opened(dirfd(stream), path);
  return stream;
}

#define READ_FOLDER(name, entry)                           \
  struct entry* name(DIR* stream) {                        \
    REAL(struct entry*, name, DIR*);                       \
    if (file_fails("readdir", dirfd(stream))) return NULL; \
    return real(stream);                                   \
  }
READ_FOLDER(readdir, dirent)
READ_FOLDER(readdir64, dirent64)

int closedir(DIR* stream) {
  REAL(int, closedir, DIR*);
  const int file = dirfd(stream);
  if (0 <= file && file < MOST_FILES) atomic_store(&is_ours[file], 0);
  return real(stream);
}

int close(int file) {
  REAL(int, close, int);
  const int failed = file_fails("close", file);
  if (0 <= file && file < MOST_FILES) atomic_store(&is_ours[file], 0);
  const int result = real(file);
  if (failed) errno = error_to_give;
  return failed ? -1 : result;
}

int fclose(FILE* stream) {
  REAL(int, fclose, FILE*);
  const int file = fileno(stream);
  const int failed = file_fails("fclose", file);
  if (0 <= file && file < MOST_FILES) atomic_store(&is_ours[file], 0);
  if (failed) __fpurge(stream);
  const int result = real(stream);
  if (failed) errno = error_to_give;
  return failed ? EOF : result;
}

int fflush(FILE* stream) {
  REAL(int, fflush, FILE*);
  if (stream != NULL && file_fails("fflush", fileno(stream))) return EOF;
  return real(stream);
}

size_t fwrite(const void* from, size_t size, size_t n, FILE* stream) {
  REAL(size_t, fwrite, const void*, size_t, size_t, FILE*);
  if (file_fails("fwrite", fileno(stream))) return 0;
  return real(from, size, n, stream);
}

size_t fread(void* to, size_t size, size_t n, FILE* stream) {
  REAL(size_t, fread, void*, size_t, size_t, FILE*);
  if (file_fails("fread", fileno(stream))) return 0;
  return real(to, size, n, stream);
}

/* Calls whose first argument is a file, by the types of the others. */
#define OF_FILE_0(result, name)                       \
  result name(int file) {                             \
    REAL(result, name, int);                          \
    return file_fails(#name, file) ? -1 : real(file); \
  }
#define OF_FILE_1(result, name, A)                       \
  result name(int file, A a) {                           \
    REAL(result, name, int, A);                          \
    return file_fails(#name, file) ? -1 : real(file, a); \
  }
#define OF_FILE_2(result, name, A, B)                       \
  result name(int file, A a, B b) {                         \
    REAL(result, name, int, A, B);                          \
    return file_fails(#name, file) ? -1 : real(file, a, b); \
  }
#define OF_FILE_3(result, name, A, B, C)                       \
  result name(int file, A a, B b, C c) {                       \
    REAL(result, name, int, A, B, C);                          \
    return file_fails(#name, file) ? -1 : real(file, a, b, c); \
  }
OF_FILE_0(int, fsync)
OF_FILE_0(int, fdatasync)
OF_FILE_1(int, ftruncate, off_t)
OF_FILE_1(int, ftruncate64, off64_t)
OF_FILE_1(int, fstat, struct stat*)
OF_FILE_1(int, fstat64, struct stat64*)
OF_FILE_2(ssize_t, read, void*, size_t)
OF_FILE_2(ssize_t, write, const void*, size_t)
OF_FILE_2(ssize_t, readv, const struct iovec*, int)
OF_FILE_2(ssize_t, writev, const struct iovec*, int)
OF_FILE_3(ssize_t, pread, void*, size_t, off_t)
OF_FILE_3(ssize_t, pread64, void*, size_t, off64_t)
OF_FILE_3(ssize_t, pwrite, const void*, size_t, off_t)
OF_FILE_3(ssize_t, pwrite64, const void*, size_t, off64_t)
OF_FILE_3(ssize_t, preadv, const struct iovec*, int, off_t)
OF_FILE_3(ssize_t, pwritev, const struct iovec*, int, off_t)
OF_FILE_3(int, fallocate, int, off_t, off_t)
OF_FILE_3(int, fallocate64, int, off64_t, off64_t)
OF_FILE_3(int, sync_file_range, off64_t, off64_t, unsigned)

/* These return the error. */
#define ADVISE(name, offset)                               \
  int name(int file, offset begin, offset n, int advice) { \
    REAL(int, name, int, offset, offset, int);             \
    if (file_fails("posix_fadvise", file)) return errno;   \
    return real(file, begin, n, advice);                   \
  }
ADVISE(posix_fadvise, off_t)
ADVISE(posix_fadvise64, off64_t)

#define ALLOCATE(name, offset)                             \
  int name(int file, offset begin, offset n) {             \
    REAL(int, name, int, offset, offset);                  \
    if (file_fails("posix_fallocate", file)) return errno; \
    return real(file, begin, n);                           \
  }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

#define MAP(name, offset)                                             \
  void* name(void* at, size_t n, int protection, int flags, int file, \
             offset begin) {                                          \
    REAL(void*, name, void*, size_t, int, int, int, offset);          \
    if (!(flags & MAP_ANONYMOUS) && file_fails("mmap", file)) {       \
      return MAP_FAILED;                                              \
    }                                                                 \
    return real(at, n, protection, flags, file, begin);               \
  }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

ssize_t copy_file_range(int from, off64_t* from_begin, int to,
                        off64_t* to_begin, size_t n, unsigned flags) {
  REAL(ssize_t, copy_file_range, int, off64_t*, int, off64_t*, size_t,
       unsigned);
  if (file_fails("copy_file_range", from)) return -1;
  return real(from, from_begin, to, to_begin, n, flags);
}

#define SEND(name, offset)                                  \
  ssize_t name(int to, int from, offset* begin, size_t n) { \
    REAL(ssize_t, name, int, int, offset*, size_t);         \
    if (file_fails("sendfile", to)) return -1;              \
    return real(to, from, begin, n);                        \
  }
SEND(sendfile, off_t)
SEND(sendfile64, off64_t)

/* Calls whose first argument is a path. */
#define OF_PATH_0(name)                               \
  int name(const char* path) {                        \
    REAL(int, name, const char*);                     \
    return path_fails(#name, path) ? -1 : real(path); \
  }
#define OF_PATH_1(name, A)                               \
  int name(const char* path, A a) {                      \
    REAL(int, name, const char*, A);                     \
    return path_fails(#name, path) ? -1 : real(path, a); \
  }
OF_PATH_0(unlink)
OF_PATH_0(rmdir)
OF_PATH_0(remove)
OF_PATH_1(access, int)
OF_PATH_1(mkdir, mode_t)
OF_PATH_1(rename, const char*)
OF_PATH_1(link, const char*)
OF_PATH_1(symlink, const char*)
OF_PATH_1(truncate, off_t)
OF_PATH_1(truncate64, off64_t)
OF_PATH_1(stat, struct stat*)
OF_PATH_1(stat64, struct stat64*)
OF_PATH_1(lstat, struct stat*)
OF_PATH_1(lstat64, struct stat64*)

/* What programs built for older C libraries call in place of stat. */
#define OLD_STAT(name, status)                                      \
  int name(int version, const char* path, struct status* to) {      \
    REAL(int, name, int, const char*, struct status*);              \
    return path_fails("stat", path) ? -1 : real(version, path, to); \
  }
OLD_STAT(__xstat, stat)
OLD_STAT(__xstat64, stat64)
OLD_STAT(__lxstat, stat)
OLD_STAT(__lxstat64, stat64)

#define OLD_FILE_STAT(name, status)                                  \
  int name(int version, int file, struct status* to) {               \
    REAL(int, name, int, int, struct status*);                       \
    return file_fails("fstat", file) ? -1 : real(version, file, to); \
  }
OLD_FILE_STAT(__fxstat, stat)
OLD_FILE_STAT(__fxstat64, stat64)

/* Calls whose second argument is a path, after an open folder. */
#define AT_1(name, A)                                        \
  int name(int at, const char* path, A a) {                  \
    REAL(int, name, int, const char*, A);                    \
    return path_fails(#name, path) ? -1 : real(at, path, a); \
  }
#define AT_2(name, A, B)                                        \
  int name(int at, const char* path, A a, B b) {                \
    REAL(int, name, int, const char*, A, B);                    \
    return path_fails(#name, path) ? -1 : real(at, path, a, b); \
  }
AT_1(unlinkat, int)
AT_1(mkdirat, mode_t)
AT_2(faccessat, int, int)
AT_2(fstatat, struct stat*, int)
AT_2(fstatat64, struct stat64*, int)
AT_2(renameat, int, const char*)

int renameat2(int at, const char* path, int to_at, const char* to,
              unsigned flags) {
  REAL(int, renameat2, int, const char*, int, const char*, unsigned);
  if (path_fails("renameat2", path)) return -1;
  return real(at, path, to_at, to, flags);
}

int linkat(int at, const char* path, int to_at, const char* to, int flags) {
  REAL(int, linkat, int, const char*, int, const char*, int);
  if (path_fails("linkat", path)) return -1;
  return real(at, path, to_at, to, flags);
}

int statx(int at, const char* path, int flags, unsigned mask,
          struct statx* to) {
  REAL(int, statx, int, const char*, int, unsigned, struct statx*);
  return path_fails("statx", path) ? -1 : real(at, path, flags, mask, to);
}
