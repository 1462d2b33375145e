#ifndef TFEMBED_KERNELS_STEP_QUEUE_H_
#define TFEMBED_KERNELS_STEP_QUEUE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// The tensors of a batch: bool [], whether it is for training, then those of
// its features (step_batch.h).
using StepBatch = std::vector<tensorflow::Tensor>;

// The batches of one replica and name on their way through a step:
//
//     put -> [enqueued] -take-> lookup -hold-> [in flight] -finish-> update
//
// Behind a TensorFlow resource handle, so that what is put by one function, or
// eagerly, is taken by another. The tensors are shared, not copied.
// Thread-safe.
class StepQueue : public tensorflow::ResourceBase {
 public:
  struct Rules {
    std::string label;         // In errors: "under the name 'x' on replica 0".
    int64_t most_batches = 1;  // That may be enqueued.
    double seconds = 0;        // For which put waits then, if not for ever.
    bool waits = false;  // Put, take and finish wait, for as long as it takes.
    bool drops_unfinished = false;  // Take drops what was not finished.
  };

  // The oldest ones first.
  struct Batches {
    std::deque<StepBatch> enqueued;
    std::deque<StepBatch> in_flight;
  };
  using IsReady = absl::FunctionRef<bool(const Batches&)>;
  using Use = absl::FunctionRef<absl::Status(Batches*)>;

  explicit StepQueue(Rules rules) : rules_(std::move(rules)) {}

  const Rules& rules() const { return rules_; }

  // What `use` makes of the batches, which nobody else sees meanwhile.
  absl::Status With(Use use);

  // The same once they are ready, for which it waits on this thread up to some
  // seconds, 0 or more, and until `*cancelled` is set and Wake called: false,
  // with nothing done, where they were not.
  bool Await(IsReady is_ready, Use use, double seconds, const bool* cancelled,
             absl::Status* status);

  // Sets a flag that Await looks at.
  void Wake(bool* cancelled);

  std::string DebugString() const override;

  // For With and its kind. Drops the oldest batch in flight; InvalidArgument,
  // with nothing dropped, where that is for training and not to be dropped.
  absl::Status DropIdle(Batches* batches) const;

  // Removes the oldest enqueued batch. InvalidArgument where none is there.
  absl::Status Pop(Batches* batches, StepBatch* batch) const;

  // DropIdle, then Pop.
  absl::Status Take(Batches* batches, StepBatch* batch) const;

  // Removes the batch that is in flight. InvalidArgument where none is there,
  // or where it is not for training.
  absl::Status Finish(Batches* batches, StepBatch* batch) const;

  // InvalidArgument: no room, nothing to take, nothing to finish.
  absl::Status NoRoom() const;
  absl::Status NothingEnqueued() const;
  absl::Status NothingInFlight() const;

 private:
  const Rules rules_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Batches batches_;
};

using StepQueuePtr = tensorflow::core::RefCountPtr<StepQueue>;

// The queue whose handle is input `input`.
absl::Status FindStepQueue(tensorflow::OpKernelContext* context, int input,
                           StepQueuePtr* queue);

bool IsForTraining(const StepBatch& batch);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_STEP_QUEUE_H_
