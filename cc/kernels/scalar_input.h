#ifndef TFEMBED_KERNELS_SCALAR_INPUT_H_
#define TFEMBED_KERNELS_SCALAR_INPUT_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// Reads the only element of an input. InvalidArgument, with its name, where it
// is no scalar.
template <typename T>
absl::Status ReadScalar(tensorflow::OpKernelContext* context, int input,
                        const char* name, T* value) {
  const tensorflow::Tensor& tensor = context->input(input);
  if (tensor.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be a scalar; got shape ",
                     tensor.shape().DebugString(), "."));
  }
  *value = tensor.scalar<T>()();
  return absl::OkStatus();
}

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_SCALAR_INPUT_H_
