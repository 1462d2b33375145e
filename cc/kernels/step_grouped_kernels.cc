// Kernels of the ops that look up and update the batches of a queue.
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/lookup_kernel.h"
#include "cc/kernels/step_batch.h"
#include "cc/kernels/step_queue.h"
#include "cc/kernels/update_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;

class StepLookupOp : public LookupKernel {
 public:
  explicit StepLookupOp(OpKernelConstruction* construction)
      : LookupKernel(construction) {
    if (!construction->status().ok()) return;
    OP_REQUIRES_OK(construction, layout_.Read(construction, spec(), 1));
  }

  void Compute(OpKernelContext* context) override {
    StepQueuePtr queue;
    OP_REQUIRES_OK(context, FindStepQueue(context, 0, &queue));
    StepBatch batch;
    OP_REQUIRES_OK(context, queue->With([&](StepQueue::Batches* batches) {
      return queue->Take(batches, &batch);
    }));
    std::vector<FeatureParts> parts;
    OP_REQUIRES_OK(context, layout_.Parts({&batch, 1}, &parts));
    OP_REQUIRES_OK(context, LookUp(context, parts));
    OP_REQUIRES_OK(context, queue->With([&](StepQueue::Batches* batches) {
      batches->in_flight.push_back(std::move(batch));
      return absl::OkStatus();
    }));
  }

 private:
  StepLayout layout_;
};

class StepUpdateOp : public UpdateKernel {
 public:
  explicit StepUpdateOp(OpKernelConstruction* construction)
      : UpdateKernel(construction) {
    if (!construction->status().ok()) return;
    OP_REQUIRES_OK(construction, construction->GetAttr("R", &num_queues_));
    OP_REQUIRES_OK(construction,
                   layout_.Read(construction, spec(), num_queues_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<StepBatch> batches(num_queues_);
    for (size_t r = 0; r < batches.size(); ++r) {
      StepQueuePtr queue;
      OP_REQUIRES_OK(context, FindStepQueue(context, r, &queue));
      OP_REQUIRES_OK(context, queue->With([&](StepQueue::Batches* of_queue) {
        return queue->Finish(of_queue, &batches[r]);
      }));
    }
    std::vector<FeatureParts> parts;
    OP_REQUIRES_OK(context, layout_.Parts(batches, &parts));
    OP_REQUIRES_OK(context, Update(context, parts));
  }

 private:
  StepLayout layout_;
  int64_t num_queues_;
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>StepLookup").Device(DEVICE_CPU),
                        StepLookupOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>StepUpdate").Device(DEVICE_CPU),
                        StepUpdateOp);

}  // namespace
}  // namespace tfembed
