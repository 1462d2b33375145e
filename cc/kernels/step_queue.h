#ifndef TFEMBED_KERNELS_STEP_QUEUE_H_
#define TFEMBED_KERNELS_STEP_QUEUE_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/core/support/mutex.h"
#include "cc/kernels/grouped_inputs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// The tensors of a batch: bool [], whether it is for training, then those of
// its features.
using StepBatch = std::vector<tensorflow::Tensor>;

// The queue of the batches of one replica and name, from put to finish:
//
//     put -> [enqueued] -take-> lookup -hold-> [in flight] -finish-> update
//
// It is a TensorFlow resource, so that one function, or eager code, can put and
// another can take. The tensors are shared, not copied. Thread-safe.
class StepQueue : public tensorflow::ResourceBase {
 public:
  struct Rules {
    std::string label;         // In errors: "under the name 'x' on replica 0".
    int64_t most_batches = 1;  // In the queue at a time.
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

  // Calls `use` with the batches, under the lock, and returns its status.
  absl::Status With(Use use);

  // As With, after blocking this thread until the batches are ready. Returns
  // false, with nothing done, after `seconds` (0 or more), or when `*cancelled`
  // is set and Wake is called.
  bool Await(IsReady is_ready, Use use, double seconds, const bool* cancelled,
             absl::Status* status);

  // Sets a flag that Await looks at.
  void Wake(bool* cancelled);

  std::string DebugString() const override;

  // For callbacks of With and Await. Drops the oldest batch in flight.
  // InvalidArgument, with nothing dropped: it is for training and must be
  // finished.
  absl::Status DropIdle(Batches* batches) const;

  // Removes the oldest enqueued batch. InvalidArgument: none is enqueued.
  absl::Status Pop(Batches* batches, StepBatch* batch) const;

  // DropIdle, then Pop.
  absl::Status Take(Batches* batches, StepBatch* batch) const;

  // Removes the batch in flight. InvalidArgument: none is in flight, or it is
  // not for training.
  absl::Status Finish(Batches* batches, StepBatch* batch) const;

  // InvalidArgument: no room, nothing to take, nothing to finish.
  absl::Status NoRoom() const;
  absl::Status NothingEnqueued() const;
  absl::Status NothingInFlight() const;

 private:
  const Rules rules_;
  mutable Mutex mutex_;
  Condition changed_;
  Batches batches_ ABSL_GUARDED_BY(mutex_);
};

using StepQueuePtr = tensorflow::core::RefCountPtr<StepQueue>;

// The queue whose handle is input `input`.
absl::Status FindStepQueue(tensorflow::OpKernelContext* context, int input,
                           StepQueuePtr* queue);

bool IsForTraining(const StepBatch& batch);

// Reads the list input `parts`, a batch. InvalidArgument: it does not begin
// with a bool scalar.
absl::Status ReadBatch(tensorflow::OpKernelContext* context, StepBatch* batch);

// Sets all outputs to the tensors of a batch. InvalidArgument: other dtypes or
// another number.
absl::Status WriteBatch(tensorflow::OpKernelContext* context, StepBatch batch);

// The layout of a step's batches: the features of a spec, an equal number from
// each batch, replica after replica. After its first tensor a batch has per
// feature the ids; rows and weights unless the ids are dense; and the dense
// shape if they are sparse (`Batch.tensors` in batch_queue.py).
class StepLayout {
 public:
  // Borrows the spec. InvalidArgument where the features cannot be those of so
  // many batches.
  absl::Status Read(tensorflow::OpKernelConstruction* construction,
                    const GroupedSpec& spec, int64_t num_batches);

  // The features of the batches, which they point into. InvalidArgument where
  // the batches are not laid out so.
  absl::Status Parts(absl::Span<const StepBatch> batches,
                     std::vector<FeatureParts>* parts) const;

 private:
  absl::Status FeatureOf(const StepBatch& batch, int feature, size_t* next,
                         FeatureParts* parts) const;

  const GroupedSpec* spec_ = nullptr;
  std::vector<tensorflow::DataType> id_dtypes_;  // Per feature, as below.
  std::vector<int64_t> batch_sizes_;
  const tensorflow::Tensor no_rows_{tensorflow::DT_INT64, {0}};
  const tensorflow::Tensor no_weights_{tensorflow::DT_FLOAT, {0}};
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_STEP_QUEUE_H_
