#ifndef TFEMBED_KERNELS_DISK_FILE_H_
#define TFEMBED_KERNELS_DISK_FILE_H_

#include <cstdint>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cc/core/support/mutex.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

// The path in the machine's file systems; "" if it is in another.
std::string LocalPath(const std::string& path);

// Every reader calls these before it opens a file: opening a FIFO blocks
// forever, a device has no end, and memory is allocated by a file's size.

// Returns the bytes of a file. NotFound: there is no file. InvalidArgument: a
// folder, a FIFO, a device or a socket (in remote file systems only folders are
// recognized). Follows links.
absl::StatusOr<int64_t> RegularFileSize(tensorflow::Env* env,
                                        const std::string& path);

// Returns the file that a new one has to be renamed to, to replace `path`: the
// end of its links, which stay. There need not be any. InvalidArgument: a
// folder, a FIFO, a device or a socket, which no file replaces; a link that
// ends nowhere, or in another file system, to which no file can be renamed.
absl::StatusOr<std::string> ReplaceableFile(const std::string& path);

// The whole content of a file that is kept in memory. The errors above;
// InvalidArgument: more than `most_bytes`, of which nothing is read.
absl::StatusOr<std::string> ReadRegularFile(tensorflow::Env* env,
                                            const std::string& path,
                                            int64_t most_bytes);

// Reads `n` bytes from `offset` on. DataLoss: the file ends before.
absl::Status ReadBytes(const tensorflow::RandomAccessFile& file, int64_t offset,
                       int64_t n, char* bytes);

// Waits until a closed file's content, or a folder's names, are on the disk.
// (WritableFile::Sync of TensorFlow's local files only flushes buffers of the
// process.) It does nothing for remote file systems, which keep closed files.
// Unknown: the disk's error.
absl::Status SyncToDisk(const std::string& path);

// Starts the write-back of a file that is still being written, so that there is
// little left to wait for in the end. A separate thread makes the system calls,
// so that a slow disk does not block the writer. It does nothing on remote file
// systems, and on systems without such a call.
class WriteBack {
 public:
  explicit WriteBack(const std::string& path);
  WriteBack(const WriteBack&) = delete;
  WriteBack& operator=(const WriteBack&) = delete;

  // Does not wait for what was not begun.
  ~WriteBack();

  // So many more bytes were written.
  void Add(int64_t bytes);

 private:
  void Run();

  const int file_;
  Mutex mutex_;
  Condition changed_;
  int64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_DISK_FILE_H_
