// Kernel of Tfembed>TrainableRows and Tfembed>TrainableRowsOf.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfembed {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelContext;
using ::tensorflow::TensorShape;

class TrainableRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const TensorShape& keys = context->input(1).shape();
    TensorShape leading = context->input(2).shape();
    if (leading.dims() > 0) leading.RemoveLastDims(1);
    OP_REQUIRES(context, context->input(2).dims() > 0 && keys == leading,
                absl::InvalidArgumentError(
                    absl::StrCat("Expected rows of shape ", keys.DebugString(),
                                 " + [dim] for the keys, got ",
                                 context->input(2).shape().DebugString())));
    context->set_output(0, context->input(2));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Tfembed>TrainableRows").Device(tensorflow::DEVICE_CPU),
    TrainableRowsOp);
REGISTER_KERNEL_BUILDER(
    Name("Tfembed>TrainableRowsOf").Device(tensorflow::DEVICE_CPU),
    TrainableRowsOp);

}  // namespace
}  // namespace tfembed
