#include "cc/kernels/step_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

// More seconds than a clock can count mean for ever.
constexpr double kMostSeconds = 1e8;

}  // namespace

absl::Status StepQueue::With(Use use) {
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status = use(&batches_);
  }
  changed_.notify_all();
  return status;
}

bool StepQueue::Await(IsReady is_ready, Use use, double seconds,
                      const bool* cancelled, absl::Status* status) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto time = std::chrono::duration<double>(
        std::min(std::max(seconds, 0.0), kMostSeconds));
    const bool in_time = changed_.wait_for(
        lock, time, [&] { return *cancelled || is_ready(batches_); });
    if (!in_time || *cancelled) return false;
    *status = use(&batches_);
  }
  changed_.notify_all();
  return true;
}

void StepQueue::Wake(bool* cancelled) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    *cancelled = true;
  }
  changed_.notify_all();
}

std::string StepQueue::DebugString() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return absl::StrCat("tfembed queue of ", batches_.enqueued.size(),
                      " batches enqueued and ", batches_.in_flight.size(),
                      " in flight");
}

absl::Status FindStepQueue(tensorflow::OpKernelContext* context, int input,
                           StepQueuePtr* queue) {
  tensorflow::ResourceHandle handle;
  TF_RETURN_IF_ERROR(ReadHandle(context, input, &handle));
  return tensorflow::LookupResource(context, handle, queue);
}

bool IsForTraining(const StepBatch& batch) { return batch[0].scalar<bool>()(); }

absl::Status StepQueue::NoRoom() const {
  return absl::InvalidArgumentError(absl::StrCat(
      "enqueue finds that ", rules_.most_batches, " batches enqueued ",
      rules_.label, " still wait for their dequeue, after ", rules_.seconds,
      " seconds. Call dequeue once per enqueue; for programs that run further "
      "ahead, make TPUEmbedding with a larger `max_enqueued` or "
      "`enqueue_timeout`; after a step that failed, call reset_steps()."));
}

absl::Status StepQueue::NothingEnqueued() const {
  return absl::InvalidArgumentError(
      absl::StrCat("dequeue finds nothing enqueued ", rules_.label,
                   ". Call enqueue first, once per dequeue and replica."));
}

absl::Status StepQueue::NothingInFlight() const {
  return absl::InvalidArgumentError(absl::StrCat(
      "apply_gradients finds no dequeued batch ", rules_.label,
      ". Call enqueue and dequeue first, once per apply_gradients and "
      "replica."));
}

absl::Status StepQueue::DropIdle(Batches* batches) const {
  if (batches->in_flight.empty()) return absl::OkStatus();
  if (!rules_.drops_unfinished && IsForTraining(batches->in_flight.front())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dequeue finds that the batch dequeued before ", rules_.label,
        " is still waiting for its apply_gradients. For evaluation, enqueue "
        "with training=False; for several lookups in one step, give each its "
        "own `name`; after a step that failed, call reset_steps()."));
  }
  batches->in_flight.pop_front();
  return absl::OkStatus();
}

absl::Status StepQueue::Take(Batches* batches, StepBatch* batch) const {
  TF_RETURN_IF_ERROR(DropIdle(batches));
  return Pop(batches, batch);
}

absl::Status StepQueue::Pop(Batches* batches, StepBatch* batch) const {
  if (batches->enqueued.empty()) return NothingEnqueued();
  *batch = std::move(batches->enqueued.front());
  batches->enqueued.pop_front();
  return absl::OkStatus();
}

absl::Status StepQueue::Finish(Batches* batches, StepBatch* batch) const {
  if (batches->in_flight.empty()) return NothingInFlight();
  *batch = std::move(batches->in_flight.front());
  batches->in_flight.pop_front();
  if (IsForTraining(*batch)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("apply_gradients finds a batch ", rules_.label,
                   " that was enqueued with training=False. Enqueue it with "
                   "training=True."));
}

}  // namespace tfembed
