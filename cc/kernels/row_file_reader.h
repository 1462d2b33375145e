#ifndef TFEMBED_KERNELS_ROW_FILE_READER_H_
#define TFEMBED_KERNELS_ROW_FILE_READER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cc/kernels/file_set.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

// The current paths of the two files of a stem, and their sizes.
struct RowFilePair {
  std::string keys_path;
  std::string values_path;
  int64_t keys_bytes = 0;
  int64_t values_bytes = 0;
};

// Finds a pair and checks it: both files exist, have the same number of rows of
// `format`, and match their manifest, checksums included, if there is one.
// NotFound, InvalidArgument (another format), DataLoss; each names the file,
// what was found and what is allowed.
absl::StatusOr<RowFilePair> CheckRowFiles(const FileFolder& folder,
                                          const std::string& stem,
                                          const RowFormat& format);

// The position of a row in both files, in bytes.
struct RowFileOffsets {
  int64_t keys = 0;
  int64_t values = 0;
};

// Reads up to `max_rows` rows from `offsets` on, 2 MB at most, into `keys` [n]
// and `values` [n, dim], and advances `offsets`. Strings are preceded by their
// length in bytes, unsigned, 32 bits.
absl::Status ReadRowFiles(tensorflow::Env* env, const RowFilePair& pair,
                          const RowFormat& format, int64_t max_rows,
                          RowFileOffsets* offsets, tensorflow::Tensor* keys,
                          tensorflow::Tensor* values);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_ROW_FILE_READER_H_
