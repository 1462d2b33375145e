#ifndef TFEMBED_KERNELS_CHECKPOINT_REPEATS_H_
#define TFEMBED_KERNELS_CHECKPOINT_REPEATS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// A callback that gets some of the keys: int64, int32 or strings. Thread-safe.
using TakeKeys = std::function<void(const tensorflow::Tensor& keys)>;

// Calls `take` with all keys, some at a time, in any order and from any
// threads; `again` is true in the second pass.
using GiveKeys = std::function<absl::Status(bool again, const TakeKeys& take)>;

// Finds a key, as text, that comes more than once among `num_keys`, without a
// copy of them: in two bytes a key, by going through them once or twice. The
// errors of `give`; ResourceExhausted.
//
// Each key sets three bits of a filter that has 16 for each key. A key whose
// bits are set already is a suspect, as is every key that comes again, and
// fewer than one in a hundred of the others. Where there are suspects, a second
// pass counts these.
absl::StatusOr<std::optional<std::string>> FindRepeatedKey(
    int64_t num_keys, const GiveKeys& give);

// Makes the error for a repeated key.
absl::Status HasTwice(absl::string_view key);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_CHECKPOINT_REPEATS_H_
