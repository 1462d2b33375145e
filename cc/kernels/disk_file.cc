#include "cc/kernels/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tensorflow/core/lib/io/path.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status NoFile(const std::string& path, absl::string_view kind) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", path, "' is no file but ", kind, "; only files are read."));
}

// TensorFlow has two forms of this call, the first of them in later releases.
template <typename File>
auto ReadSome(const File& file, int64_t offset, int64_t n,
              absl::string_view* read, char* bytes, int)
    -> decltype(file.Read(offset, *read, absl::MakeSpan(bytes, n))) {
  return file.Read(offset, *read, absl::MakeSpan(bytes, n));
}
template <typename File>
auto ReadSome(const File& file, int64_t offset, int64_t n,
              absl::string_view* read, char* bytes, int64_t)
    -> decltype(file.Read(offset, n, read, bytes)) {
  return file.Read(offset, n, read, bytes);
}

constexpr int64_t kStepBytes = 8 << 20;

// -1: no.
int OpenLocal(const std::string& local) {
  return ::open(local.c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace

std::string LocalPath(const std::string& path) {
  absl::string_view scheme, host, local;
  tensorflow::io::ParseURI(path, &scheme, &host, &local);
  return scheme.empty() || scheme == "file" ? std::string(local) : "";
}

absl::StatusOr<int64_t> RegularFileSize(tensorflow::Env* env,
                                        const std::string& path) {
  const std::string local = LocalPath(path);
  struct stat local_file;
  if (!local.empty() && ::stat(local.c_str(), &local_file) == 0) {
    if (S_ISREG(local_file.st_mode)) return int64_t{local_file.st_size};
    return NoFile(path, KindOf(local_file.st_mode));
  }
  // TensorFlow's words for what is wrong.
  tensorflow::FileStatistics statistics;
  TF_RETURN_IF_ERROR(env->Stat(path, &statistics));
  if (statistics.is_directory) return NoFile(path, "a folder");
  return statistics.length;
}

absl::StatusOr<std::string> ReplaceableFile(const std::string& path) {
  const std::string local = LocalPath(path);
  struct stat there;
  if (local.empty() || ::lstat(local.c_str(), &there) != 0) return path;
  if (S_ISREG(there.st_mode)) return path;
  const auto refused = [&path](absl::string_view kind) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path, "' is ", kind,
        "; only files are replaced. Remove it, or save elsewhere."));
  };
  if (!S_ISLNK(there.st_mode)) return refused(KindOf(there.st_mode));
  const std::string folder =
      absl::StrCat(std::string(tensorflow::io::Dirname(local)), "/.");
  struct stat own;
  char* const real = ::realpath(local.c_str(), nullptr);
  if (real == nullptr) return refused("a link that ends nowhere");
  const std::string end = real;
  std::free(real);
  if (::stat(end.c_str(), &there) != 0 || ::stat(folder.c_str(), &own) != 0) {
    return refused("a link that ends nowhere");
  }
  if (!S_ISREG(there.st_mode)) return refused(KindOf(there.st_mode));
  if (there.st_dev != own.st_dev) {
    return refused("a link into another file system");
  }
  return end;
}

absl::StatusOr<std::string> ReadRegularFile(tensorflow::Env* env,
                                            const std::string& path,
                                            int64_t most_bytes) {
  const absl::StatusOr<int64_t> size = RegularFileSize(env, path);
  if (!size.ok()) return size.status();
  if (*size > most_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' has ", *size, " bytes; at most ", most_bytes,
                     " are read of such a file."));
  }
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  TF_RETURN_IF_ERROR(env->NewRandomAccessFile(path, &file));
  std::string text(*size, '\0');
  TF_RETURN_IF_ERROR(ReadBytes(*file, 0, *size, text.data()));
  return text;
}

absl::Status ReadBytes(const tensorflow::RandomAccessFile& file, int64_t offset,
                       int64_t n, char* bytes) {
  absl::string_view read;
  const absl::Status status = ReadSome(file, offset, n, &read, bytes, 0);
  if (!status.ok() && !absl::IsOutOfRange(status)) return status;
  if (static_cast<int64_t>(read.size()) < n) {
    return absl::DataLossError(absl::StrCat("it ends after ", read.size(),
                                            " of ", n, " bytes at ", offset));
  }
  if (read.data() != bytes) std::memcpy(bytes, read.data(), read.size());
  return absl::OkStatus();
}

absl::Status SyncToDisk(const std::string& path) {
  const std::string local = LocalPath(path);
  if (local.empty()) return absl::OkStatus();
  const int file = OpenLocal(local);
  const bool done = file >= 0 && ::fsync(file) == 0;
  const int error = errno;
  if (file >= 0) ::close(file);
  // Some file systems have no such call for folders.
  if (done || error == EINVAL || error == ENOTSUP) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("'", path, "' could not be brought to",
                                         " the disk: ", std::strerror(error),
                                         "."));
}

WriteBack::WriteBack(const std::string& path)
    : file_(OpenLocal(LocalPath(path))) {}

WriteBack::~WriteBack() {
  {
    const MutexLock lock(&mutex_);
    is_ending_ = true;
  }
  changed_.NotifyOne();
  if (thread_.joinable()) thread_.join();
  if (file_ >= 0) ::close(file_);
}

void WriteBack::Add(int64_t bytes) {
  if (file_ < 0) return;
  const MutexLock lock(&mutex_);
  written_ += bytes;
  if (written_ < kStepBytes) return;  // Most files are smaller.
  if (thread_.joinable()) {
    changed_.NotifyOne();
    return;
  }
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::exception&) {
    written_ = 0;  // There are no more threads; the next step tries again.
  }
}

void WriteBack::Run() {
#if defined(SYNC_FILE_RANGE_WRITE)
  int64_t begun = 0;
  for (;;) {
    {
      const MutexLock lock(&mutex_);
      while (!is_ending_ && written_ - begun < kStepBytes) {
        changed_.Wait(&mutex_);
      }
      if (is_ending_) return;
    }
    // Returns when the disk's queue has taken it.
    ::sync_file_range(file_, begun, kStepBytes, SYNC_FILE_RANGE_WRITE);
    begun += kStepBytes;
  }
#endif
}

}  // namespace tfembed
