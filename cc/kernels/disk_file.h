#ifndef TFEMBED_KERNELS_DISK_FILE_H_
#define TFEMBED_KERNELS_DISK_FILE_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

// The path in the machine's file systems; "" if it is in another.
std::string LocalPath(const std::string& path);

// Every reader asks for these before it opens a file: opening a FIFO waits for
// ever, a device has no end, and memory is taken by a file's size.

// The bytes of a file. NotFound: there is nothing. InvalidArgument: a folder, a
// FIFO, a device or a socket (in other file systems than the machine's only
// folders are told apart). Follows links.
absl::StatusOr<int64_t> RegularFileSize(tensorflow::Env* env,
                                        const std::string& path);

// The whole content of a file that is kept in memory. The errors above;
// InvalidArgument: more than `most_bytes`, of which nothing is read.
absl::StatusOr<std::string> ReadRegularFile(tensorflow::Env* env,
                                            const std::string& path,
                                            int64_t most_bytes);

// Reads `n` bytes from `offset` on. DataLoss: the file ends before.
absl::Status ReadBytes(const tensorflow::RandomAccessFile& file, int64_t offset,
                       int64_t n, char* bytes);

// Returns when a closed file's content, or a folder's names, are on the disk as
// they are now. (WritableFile::Sync of TensorFlow's local files only empties
// buffers of the process.) Of other file systems than the machine's it asks
// nothing: what they have closed they keep. Unknown: the disk's error.
absl::Status SyncToDisk(const std::string& path);

// Lets the disk begin with a file that is still being written, so that there is
// little left to wait for in the end. A thread of its own asks for that, so
// that the writer of the file goes on where the disk is slow. On file systems
// other than the machine's, and where the system has no such call, nothing
// happens.
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
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t written_ = 0;  // Guarded by mutex_, as is is_ending_.
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_DISK_FILE_H_
