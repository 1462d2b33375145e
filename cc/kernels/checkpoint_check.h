#ifndef TFEMBED_KERNELS_CHECKPOINT_CHECK_H_
#define TFEMBED_KERNELS_CHECKPOINT_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

// Reads every byte of the checkpoint `prefix`, whatever saved it, and compares
// checksums; takes a few megabytes of memory (and the strings in it). NotFound:
// a file is missing. DataLoss: a file is damaged or cut off. Both name the file
// and, where it is known, the tensor.
absl::Status CheckCheckpoint(tensorflow::Env* env, const std::string& prefix);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_CHECKPOINT_CHECK_H_
