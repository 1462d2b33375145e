#ifndef TFEMBED_KERNELS_CHECKPOINT_CHECK_H_
#define TFEMBED_KERNELS_CHECKPOINT_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {

// Checks the checkpoint `prefix`, whatever saved it: all that its index says,
// and that all of it is in the files. With `checksums` it reads every byte and
// compares them; without, little more than the index. Takes a few megabytes of
// memory, and a few times the index. NotFound: a file is missing. DataLoss: a
// file is damaged or cut off. Both name the file and, where it is known, the
// tensor.
absl::Status CheckCheckpoint(tensorflow::Env* env, const std::string& prefix,
                             bool checksums);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_CHECKPOINT_CHECK_H_
