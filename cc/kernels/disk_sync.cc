#include "cc/kernels/disk_sync.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/lib/io/path.h"

namespace tfembed {

namespace {

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
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  if (file_ >= 0) ::close(file_);
}

void WriteBack::Add(int64_t bytes) {
  if (file_ < 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  written_ += bytes;
  if (written_ < kStepBytes) return;  // Most files are smaller.
  if (thread_.joinable()) {
    changed_.notify_one();
    return;
  }
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    written_ = 0;  // There are no more threads; the next step tries again.
  }
}

void WriteBack::Run() {
#if defined(SYNC_FILE_RANGE_WRITE)
  int64_t begun = 0;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(
          lock, [&] { return is_ending_ || written_ - begun >= kStepBytes; });
      if (is_ending_) return;
    }
    // Returns when the disk's queue has taken it.
    ::sync_file_range(file_, begun, kStepBytes, SYNC_FILE_RANGE_WRITE);
    begun += kStepBytes;
  }
#endif
}

}  // namespace tfembed
