// Kernels of the ops on a queue of batches that may have to wait for it.
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "cc/kernels/step_batch.h"
#include "cc/kernels/step_queue.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::CancellationManager;
using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernelContext;

// An op that may have to wait until a queue's batches are ready for it. It
// waits on a thread of its own, which only such a step has: no kernel blocks
// one of a pool.
class WaitingOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    StepQueuePtr queue;
    OP_REQUIRES_OK_ASYNC(context, FindStepQueue(context, 0, &queue), done);
    OP_REQUIRES_OK_ASYNC(context, Prepare(context, queue.get()), done);
    absl::Status status;
    const bool cancelled = false;
    const bool is_done =
        UseReady(context, queue.get(), /*seconds=*/0, &cancelled, &status);
    if (!is_done && Seconds(*queue) > 0) {
      Wait(context, std::move(queue), std::move(done));
      return;
    }
    OP_REQUIRES_OK_ASYNC(context, is_done ? status : NotReady(*queue), done);
    done();
  }

 protected:
  // For how long it waits; 0: not at all.
  virtual double Seconds(const StepQueue& queue) const {
    return queue.rules().waits ? std::numeric_limits<double>::infinity() : 0;
  }

  // What need not wait.
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

  void Wait(OpKernelContext* context, StepQueuePtr given, DoneCallback done) {
    // For the function below, which has to be copyable.
    auto queue = std::make_shared<StepQueuePtr>(std::move(given));
    auto cancelled = std::make_shared<bool>(false);
    CancellationManager* const manager = context->cancellation_manager();
    const tensorflow::CancellationToken token =
        manager == nullptr ? 0 : manager->get_cancellation_token();
    if (manager != nullptr &&
        !manager->RegisterCallback(
            token, [queue, cancelled] { (*queue)->Wake(cancelled.get()); })) {
      context->SetStatus(absl::CancelledError("The step was cancelled."));
      done();
      return;
    }
    tensorflow::Env::Default()->SchedClosure([this, context, queue, cancelled,
                                              manager, token, done] {
      StepQueue* const q = queue->get();
      absl::Status status;
      const bool is_done =
          UseReady(context, q, Seconds(*q), cancelled.get(), &status);
      if (manager != nullptr) manager->DeregisterCallback(token);
      if (!is_done) {
        status = *cancelled ? absl::CancelledError("The step was cancelled.")
                            : NotReady(*q);
      }
      if (!status.ok()) context->SetStatus(status);
      done();
    });
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

REGISTER_KERNEL_BUILDER(Name("Tfembed>StepPut").Device(DEVICE_CPU), StepPutOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>StepTake").Device(DEVICE_CPU),
                        StepTakeOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>StepFinish").Device(DEVICE_CPU),
                        StepFinishOp);

}  // namespace
}  // namespace tfembed
