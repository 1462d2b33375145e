// Kernels of the ops that take packed batches apart.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// As many int64 as TensorFlow aligns a tensor to.
constexpr int64_t kAligned = 8;

class SplitAlignedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<int64_t> begins;
    OP_REQUIRES_OK(context, FindBegins(context, &begins));
    const Tensor& values = context->input(0);
    const int64_t* sizes = context->input(1).flat<int64_t>().data();
    for (int i = 0; i < num_outputs(); ++i) {
      const Tensor part = values.Slice(begins[i], begins[i] + sizes[i]);
      if (part.IsAligned()) {
        context->set_output(i, part);
      } else {
        OP_REQUIRES_OK(context, Copy(context, i, part));
      }
    }
  }

 private:
  // Refuses sizes that do not fit before any part is made.
  absl::Status FindBegins(OpKernelContext* context,
                          std::vector<int64_t>* begins) const {
    const Tensor& values = context->input(0);
    const Tensor& sizes = context->input(1);
    if (values.dims() != 1 || sizes.dims() != 1 ||
        sizes.NumElements() != num_outputs()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Packed values must be a vector, with a size for each of the ",
          num_outputs(), " parts; got values ", values.shape().DebugString(),
          ", sizes ", sizes.shape().DebugString(), "."));
    }
    const int64_t total = values.NumElements();
    int64_t begin = 0;
    for (int i = 0; i < num_outputs(); ++i) {
      const int64_t size = sizes.flat<int64_t>()(i);
      if (size < 0 || size > total - std::min(begin, total)) {
        return absl::InvalidArgumentError(
            absl::StrCat("Part ", i, " of packed values has size ", size,
                         " and begins at ", begin, ", where there are ", total,
                         " values. Give what pack_features returned."));
      }
      // An empty part has no place of its own to be beyond of.
      begins->push_back(std::min(begin, total));
      begin += (size + kAligned - 1) / kAligned * kAligned;
    }
    return absl::OkStatus();
  }

  static absl::Status Copy(OpKernelContext* context, int i,
                           const Tensor& part) {
    Tensor* copy;
    TF_RETURN_IF_ERROR(context->allocate_output(i, part.shape(), &copy));
    const auto from = part.unaligned_flat<int64_t>();
    std::copy_n(from.data(), from.size(), copy->flat<int64_t>().data());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>SplitAligned").Device(DEVICE_CPU),
                        SplitAlignedOp);

}  // namespace
}  // namespace tfembed
