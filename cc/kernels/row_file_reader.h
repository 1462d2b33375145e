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

// Where the two files of a stem lie now, and their sizes.
struct RowFilePair {
  std::string keys_path;
  std::string values_path;
  int64_t keys_bytes = 0;
  int64_t values_bytes = 0;
};

// Finds a pair and checks it: both files are there, hold the same number of
// rows of `format`, and are what their manifest says, checksums included, where
// they have one. NotFound, InvalidArgument (another format), DataLoss; each
// says which file, what was found and what is allowed.
absl::StatusOr<RowFilePair> CheckRowFiles(const FileFolder& folder,
                                          const std::string& stem,
                                          const RowFormat& format);

// A place between two rows, in bytes.
struct RowFileOffsets {
  int64_t keys = 0;
  int64_t values = 0;
};

// Reads up to `max_rows` rows from `offsets` on, 16 MB at most, and moves these
// behind them: `keys` [n] and `values` [n, dim]. Strings are preceded by their
// length in bytes, unsigned, 32 bits.
absl::Status ReadRowFiles(tensorflow::Env* env, const RowFilePair& pair,
                          const RowFormat& format, int64_t max_rows,
                          RowFileOffsets* offsets, tensorflow::Tensor* keys,
                          tensorflow::Tensor* values);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_ROW_FILE_READER_H_
