#include "cc/kernels/disk_sync.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/lib/io/path.h"

namespace tfembed {

absl::Status SyncToDisk(const std::string& path) {
  absl::string_view scheme, host, local;
  tensorflow::io::ParseURI(path, &scheme, &host, &local);
  if (!scheme.empty() && scheme != "file") return absl::OkStatus();
  const int file = ::open(std::string(local).c_str(), O_RDONLY | O_CLOEXEC);
  const bool done = file >= 0 && ::fsync(file) == 0;
  const int error = errno;
  if (file >= 0) ::close(file);
  // Some file systems have no such call for folders.
  if (done || error == EINVAL || error == ENOTSUP) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("'", path, "' could not be brought to",
                                         " the disk: ", std::strerror(error),
                                         "."));
}

}  // namespace tfembed
