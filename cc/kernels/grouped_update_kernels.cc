// Kernel of Tfembed>GroupedUpdate.
#include <vector>

#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/update_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernelContext;

class GroupedUpdateOp : public UpdateKernel {
 public:
  using UpdateKernel::UpdateKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<FeatureParts> parts;
    OP_REQUIRES_OK(context, ReadParts(context, spec(), &parts));
    OP_REQUIRES_OK(context, Update(context, parts));
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>GroupedUpdate").Device(DEVICE_CPU),
                        GroupedUpdateOp);

}  // namespace
}  // namespace tfembed
