#ifndef TFEMBED_KERNELS_MAPPED_TENSOR_H_
#define TFEMBED_KERNELS_MAPPED_TENSOR_H_

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tfembed {

// Makes a tensor whose memory comes straight from the system and goes back with
// the tensor, for what files are read into. Memory of the heap would stay: each
// thread of a pool has a heap of its own, which keeps up to 64 MB that were
// freed, and which malloc_trim does not reach. Strings, and a few bytes, are on
// the heap all the same. The numbers are zeros. ResourceExhausted.
absl::StatusOr<tensorflow::Tensor> MapTensor(
    tensorflow::DataType dtype, const tensorflow::TensorShape& shape);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_MAPPED_TENSOR_H_
