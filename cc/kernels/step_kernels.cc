// Kernels of the ops on a queue of batches that never wait.
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/kernels/step_batch.h"
#include "cc/kernels/step_queue.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::ResourceHandle;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class StepQueueCreateOp : public OpKernel {
 public:
  explicit StepQueueCreateOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("shared_name", &shared_name_));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("most_batches", &rules_.most_batches));
    float seconds;
    OP_REQUIRES_OK(construction, construction->GetAttr("seconds", &seconds));
    rules_.seconds = seconds;
    OP_REQUIRES_OK(construction, construction->GetAttr("waits", &rules_.waits));
    OP_REQUIRES_OK(
        construction,
        construction->GetAttr("drops_unfinished", &rules_.drops_unfinished));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Create(context));
  }

 private:
  absl::Status Create(OpKernelContext* context) const {
    StepQueue::Rules rules = rules_;
    const Tensor& label = context->input(0);
    if (label.dims() != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`label` must be one string; got ", label.DebugString(), "."));
    }
    rules.label = label.scalar<tensorflow::tstring>()();
    Tensor* handle;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({}), &handle));
    if (shared_name_.empty()) {
      handle->scalar<ResourceHandle>()() =
          ResourceHandle::MakeRefCountingHandle(new StepQueue(std::move(rules)),
                                                context->device()->name());
      return absl::OkStatus();
    }
    tensorflow::ContainerInfo container;
    TF_RETURN_IF_ERROR(container.Init(context->resource_manager(), def()));
    StepQueue* found;
    TF_RETURN_IF_ERROR(context->resource_manager()->LookupOrCreate<StepQueue>(
        container.container(), container.name(), &found, [&](StepQueue** made) {
          *made = new StepQueue(rules);
          return absl::OkStatus();
        }));
    const StepQueuePtr queue(found);
    handle->scalar<ResourceHandle>()() =
        tensorflow::MakeResourceHandle<StepQueue>(
            context, container.container(), container.name());
    return absl::OkStatus();
  }

  std::string shared_name_;
  StepQueue::Rules rules_;  // But for the label.
};

// An op that uses a queue's batches at once.
class QueueOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    StepQueuePtr queue;
    OP_REQUIRES_OK(context, FindStepQueue(context, 0, &queue));
    OP_REQUIRES_OK(context, queue->With([&](StepQueue::Batches* batches) {
      return Use(*queue, context, batches);
    }));
  }

 protected:
  virtual absl::Status Use(const StepQueue& queue, OpKernelContext* context,
                           StepQueue::Batches* batches) const = 0;
};

class StepDropIdleOp : public QueueOp {
 public:
  using QueueOp::QueueOp;

 protected:
  absl::Status Use(const StepQueue& queue, OpKernelContext* context,
                   StepQueue::Batches* batches) const override {
    return queue.DropIdle(batches);
  }
};

class StepHoldOp : public QueueOp {
 public:
  using QueueOp::QueueOp;

 protected:
  absl::Status Use(const StepQueue& queue, OpKernelContext* context,
                   StepQueue::Batches* batches) const override {
    StepBatch batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, &batch));
    batches->in_flight.push_back(std::move(batch));
    return absl::OkStatus();
  }
};

class StepSizesOp : public QueueOp {
 public:
  using QueueOp::QueueOp;

 protected:
  absl::Status Use(const StepQueue& queue, OpKernelContext* context,
                   StepQueue::Batches* batches) const override {
    Tensor* sizes;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({2}), &sizes));
    sizes->flat<int32_t>()(0) = batches->enqueued.size();
    int32_t training = 0;
    for (const StepBatch& batch : batches->in_flight) {
      training += IsForTraining(batch);
    }
    sizes->flat<int32_t>()(1) = training;
    return absl::OkStatus();
  }
};

class StepClearOp : public QueueOp {
 public:
  using QueueOp::QueueOp;

 protected:
  absl::Status Use(const StepQueue& queue, OpKernelContext* context,
                   StepQueue::Batches* batches) const override {
    *batches = {};
    return absl::OkStatus();
  }
};

#define TFEMBED_REGISTER(name) \
  REGISTER_KERNEL_BUILDER(Name("Tfembed>" #name).Device(DEVICE_CPU), name##Op)

TFEMBED_REGISTER(StepQueueCreate);
TFEMBED_REGISTER(StepDropIdle);
TFEMBED_REGISTER(StepHold);
TFEMBED_REGISTER(StepSizes);
TFEMBED_REGISTER(StepClear);

}  // namespace
}  // namespace tfembed
