#ifndef TFEMBED_KERNELS_DISK_SYNC_H_
#define TFEMBED_KERNELS_DISK_SYNC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tfembed {

// Returns when a closed file's content, or a folder's names, are on the disk as
// they are now. (WritableFile::Sync of TensorFlow's local files only empties
// buffers of the process.) Of other file systems than the machine's it asks
// nothing: what they have closed they keep. Unknown: the disk's error.
absl::Status SyncToDisk(const std::string& path);

// Lets the disk begin with a file that is still being written, so that there is
// little left to wait for in the end. Of other file systems than the machine's,
// and where the system has no such call, it does nothing.
class WriteBack {
 public:
  explicit WriteBack(const std::string& path);
  WriteBack(const WriteBack&) = delete;
  WriteBack& operator=(const WriteBack&) = delete;
  ~WriteBack();

  // So many more bytes were written. Every some megabytes the disk begins with
  // all that the system has of the file by then.
  void Add(int64_t bytes);

 private:
  const int file_;
  int64_t bytes_ = 0;  // With which it has not begun.
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_DISK_SYNC_H_
