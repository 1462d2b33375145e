#ifndef TFEMBED_KERNELS_REGULAR_FILE_H_
#define TFEMBED_KERNELS_REGULAR_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

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

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_REGULAR_FILE_H_
