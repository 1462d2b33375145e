// Kernels of the ops on a queue of batches.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/support/guard_memory.h"
#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/kernel_context.h"
#include "cc/kernels/lookup_kernel.h"
#include "cc/kernels/step_queue.h"
#include "cc/kernels/update_kernel.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/env.h"
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

TFEMBED_KERNEL(StepQueueCreate, StepQueueCreateOp);
TFEMBED_KERNEL(StepDropIdle, StepDropIdleOp);
TFEMBED_KERNEL(StepHold, StepHoldOp);
TFEMBED_KERNEL(StepSizes, StepSizesOp);
TFEMBED_KERNEL(StepClear, StepClearOp);

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::CancellationManager;

// An op that may have to wait until a queue's batches are ready for it. It
// waits on a thread of its own, which only such a step has: no kernel blocks
// one of a pool.
class WaitingOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    absl::Status status;
    try {
      StepQueuePtr queue;
      status = FindStepQueue(context, 0, &queue);
      if (status.ok()) status = Prepare(context, queue.get());
      const bool cancelled = false;
      if (status.ok() &&
          !UseReady(context, queue.get(), /*seconds=*/0, &cancelled, &status)) {
        if (Seconds(*queue) > 0) {
          status = Wait(context, std::move(queue), done);
          if (status.ok()) return;
        } else {
          status = NotReady(*queue);
        }
      }
    } catch (const std::bad_alloc&) {
      status = NoMemoryFor(*this);
    } catch (const std::system_error& error) {  // There are no more threads.
      status = absl::ResourceExhaustedError(
          absl::StrCat("The system refused the thread on which ", type_string(),
                       " waits for its batch: ", error.what(), "."));
    }
    End(context, status, done);  // Not within the try: it may run other ops.
  }

 protected:
  // For how long it waits; 0: not at all.
  virtual double Seconds(const StepQueue& queue) const {
    return queue.rules().waits ? std::numeric_limits<double>::infinity() : 0;
  }

  // Does the work that need not wait.
  virtual absl::Status Prepare(OpKernelContext* context,
                               StepQueue* queue) const {
    return absl::OkStatus();
  }
  virtual bool IsReady(const StepQueue& queue,
                       const StepQueue::Batches& batches) const = 0;
  virtual absl::Status Use(const StepQueue& queue, OpKernelContext* context,
                           StepQueue::Batches* batches) const = 0;
  virtual absl::Status NotReady(const StepQueue& queue) const = 0;

 private:
  static void End(OpKernelContext* context, const absl::Status& status,
                  const DoneCallback& done) {
    if (!status.ok()) context->SetStatus(status);
    done();
  }

  // Whether the queue's batches were ready in time, and used.
  bool UseReady(OpKernelContext* context, StepQueue* queue, double seconds,
                const bool* cancelled, absl::Status* status) const {
    return queue->Await(
        [&](const StepQueue::Batches& batches) {
          return IsReady(*queue, batches);
        },
        [&](StepQueue::Batches* batches) {
          return Use(*queue, context, batches);
        },
        seconds, cancelled, status);
  }

  // Has another thread end the op, unless it fails or throws.
  absl::Status Wait(OpKernelContext* context, StepQueuePtr given,
                    const DoneCallback& done) const {
    // For the function below, which has to be copyable.
    auto queue = std::make_shared<StepQueuePtr>(std::move(given));
    auto cancelled = std::make_shared<bool>(false);
    CancellationManager* const manager = context->cancellation_manager();
    const tensorflow::CancellationToken token =
        manager == nullptr ? 0 : manager->get_cancellation_token();
    if (manager != nullptr &&
        !manager->RegisterCallback(
            token, [queue, cancelled] { (*queue)->Wake(cancelled.get()); })) {
      return Cancelled();
    }
    try {
      tensorflow::Env::Default()->SchedClosure(
          [this, context, queue, cancelled, manager, token, done] {
            const absl::Status status =
                AwaitUse(context, queue->get(), cancelled.get());
            if (manager != nullptr) manager->DeregisterCallback(token);
            End(context, status, done);
          });
    } catch (...) {
      if (manager != nullptr) manager->DeregisterCallback(token);
      throw;
    }
    return absl::OkStatus();
  }

  absl::Status AwaitUse(OpKernelContext* context, StepQueue* queue,
                        const bool* cancelled) const {
    const auto use = [&] {
      absl::Status status;
      if (UseReady(context, queue, Seconds(*queue), cancelled, &status)) {
        return status;
      }
      return *cancelled ? Cancelled() : NotReady(*queue);
    };
    return GuardMemory(use, [&] { return NoMemoryFor(*this); });
  }

  static absl::Status Cancelled() {
    return absl::CancelledError("The step was cancelled.");
  }
};

class StepPutOp : public WaitingOp {
 public:
  using WaitingOp::WaitingOp;

 protected:
  double Seconds(const StepQueue& queue) const override {
    return queue.rules().waits ? WaitingOp::Seconds(queue)
                               : queue.rules().seconds;
  }

  bool IsReady(const StepQueue& queue,
               const StepQueue::Batches& batches) const override {
    return batches.enqueued.size() < queue.rules().most_batches;
  }

  absl::Status Use(const StepQueue& queue, OpKernelContext* context,
                   StepQueue::Batches* batches) const override {
    StepBatch batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, &batch));
    batches->enqueued.push_back(std::move(batch));
    return absl::OkStatus();
  }

  absl::Status NotReady(const StepQueue& queue) const override {
    return queue.NoRoom();
  }
};

class StepTakeOp : public WaitingOp {
 public:
  using WaitingOp::WaitingOp;

 protected:
  absl::Status Prepare(OpKernelContext* context,
                       StepQueue* queue) const override {
    return queue->With(
        [&](StepQueue::Batches* batches) { return queue->DropIdle(batches); });
  }

  bool IsReady(const StepQueue& queue,
               const StepQueue::Batches& batches) const override {
    return !batches.enqueued.empty();
  }

  absl::Status Use(const StepQueue& queue, OpKernelContext* context,
                   StepQueue::Batches* batches) const override {
    StepBatch batch;
    TF_RETURN_IF_ERROR(queue.Pop(batches, &batch));
    return WriteBatch(context, std::move(batch));
  }

  absl::Status NotReady(const StepQueue& queue) const override {
    return queue.NothingEnqueued();
  }
};

class StepFinishOp : public WaitingOp {
 public:
  using WaitingOp::WaitingOp;

 protected:
  bool IsReady(const StepQueue& queue,
               const StepQueue::Batches& batches) const override {
    return !batches.in_flight.empty();
  }

  absl::Status Use(const StepQueue& queue, OpKernelContext* context,
                   StepQueue::Batches* batches) const override {
    StepBatch batch;
    TF_RETURN_IF_ERROR(queue.Finish(batches, &batch));
    return WriteBatch(context, std::move(batch));
  }

  absl::Status NotReady(const StepQueue& queue) const override {
    return queue.NothingInFlight();
  }
};

TFEMBED_ASYNC_KERNEL(StepPut, StepPutOp);
TFEMBED_ASYNC_KERNEL(StepTake, StepTakeOp);
TFEMBED_ASYNC_KERNEL(StepFinish, StepFinishOp);

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

TFEMBED_KERNEL(StepLookup, StepLookupOp);
TFEMBED_KERNEL(StepUpdate, StepUpdateOp);

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

TFEMBED_KERNEL(SplitAligned, SplitAlignedOp);

}  // namespace

}  // namespace tfembed
