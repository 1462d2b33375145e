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

  // Calls `use` with the batches, alone, and returns its status.
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
  mutable Mutex mutex_;
  Condition changed_;
  Batches batches_ ABSL_GUARDED_BY(mutex_);
};

using StepQueuePtr = tensorflow::core::RefCountPtr<StepQueue>;

// The queue whose handle is input `input`.
absl::Status FindStepQueue(tensorflow::OpKernelContext* context, int input,
                           StepQueuePtr* queue);

bool IsForTraining(const StepBatch& batch);

// The list input `parts`, a batch. InvalidArgument where it does not begin with
// one bool.
absl::Status ReadBatch(tensorflow::OpKernelContext* context, StepBatch* batch);

// Hands a batch out as all the outputs. InvalidArgument where they are others.
absl::Status WriteBatch(tensorflow::OpKernelContext* context, StepBatch batch);

// How the batches of a step are laid out: the features of a spec, the same
// number of them from each of its batches, one replica's behind the other's. A
// batch is, behind its first tensor, per feature ids and, but for dense ones,
// rows and weights and, of sparse ones, the dense shape (BatchForm in Python).
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
