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

using Clock = std::chrono::steady_clock;

using ::tensorflow::DataType;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

absl::Status NotSo(const FeatureSpec& feature) {
  return absl::InvalidArgumentError(absl::StrCat(
      "In ", feature.name,
      ": the batch in the queue is not laid out as the op is told."));
}

// Wakes those who wait, also where a callback throws after it changed what is
// in the queue.
class Notice {
 public:
  explicit Notice(Condition* changed) : changed_(*changed) {}
  Notice(const Notice&) = delete;
  ~Notice() { changed_.NotifyAll(); }

 private:
  Condition& changed_;
};

}  // namespace

absl::Status StepQueue::With(Use use) {
  const Notice notice(&changed_);
  const MutexLock lock(&mutex_);
  return use(&batches_);
}

bool StepQueue::Await(IsReady is_ready, Use use, double seconds,
                      const bool* cancelled, absl::Status* status) {
  const Notice notice(&changed_);
  const MutexLock lock(&mutex_);
  const auto end =
      Clock::now() +
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
          std::min(std::max(seconds, 0.0), kMostSeconds)));
  while (!*cancelled && !is_ready(batches_)) {
    const bool in_time = changed_.WaitUntil(&mutex_, end);
    if (!in_time && !*cancelled && !is_ready(batches_)) return false;
  }
  if (*cancelled) return false;
  *status = use(&batches_);
  return true;
}

void StepQueue::Wake(bool* cancelled) {
  {
    const MutexLock lock(&mutex_);
    *cancelled = true;
  }
  changed_.NotifyAll();
}

std::string StepQueue::DebugString() const {
  const MutexLock lock(&mutex_);
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

absl::Status ReadBatch(OpKernelContext* context, StepBatch* batch) {
  OpInputList parts;
  TF_RETURN_IF_ERROR(context->input_list("parts", &parts));
  batch->assign(parts.begin(), parts.end());
  const Tensor& training = batch->front();
  if (training.dtype() == tensorflow::DT_BOOL && training.dims() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("The first part of a batch must be one bool; got ",
                   training.DebugString(), "."));
}

absl::Status WriteBatch(OpKernelContext* context, StepBatch batch) {
  if (batch.size() != context->num_outputs()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The batch in the queue has ", batch.size(),
        " parts; the op is told of ", context->num_outputs(), "."));
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].dtype() != context->expected_output_dtype(i)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Part ", i, " of the batch in the queue is ",
          tensorflow::DataTypeString(batch[i].dtype()), "; the op is told of ",
          tensorflow::DataTypeString(context->expected_output_dtype(i)), "."));
    }
    context->set_output(i, std::move(batch[i]));
  }
  return absl::OkStatus();
}

absl::Status StepLayout::Read(tensorflow::OpKernelConstruction* construction,
                              const GroupedSpec& spec, int64_t num_batches) {
  spec_ = &spec;
  TF_RETURN_IF_ERROR(construction->GetAttr("Tids", &id_dtypes_));
  TF_RETURN_IF_ERROR(construction->GetAttr("batch_sizes", &batch_sizes_));
  const int64_t features = spec.features.size();
  if (batch_sizes_.size() != features || features % num_batches != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`batch_sizes` must have one entry for each of the ",
                     features, " features, which are as many of each of the ",
                     num_batches, " batches; got ", batch_sizes_.size(), "."));
  }
  for (int64_t size : batch_sizes_) {
    if (size >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("`batch_sizes` must not be negative; got ", size, "."));
  }
  return absl::OkStatus();
}

absl::Status StepLayout::Parts(absl::Span<const StepBatch> batches,
                               std::vector<FeatureParts>* parts) const {
  const size_t features = spec_->features.size();
  const size_t of_batch = features / batches.size();
  parts->resize(features);
  for (size_t b = 0; b < batches.size(); ++b) {
    size_t next = 1;
    for (size_t f = b * of_batch; f < (b + 1) * of_batch; ++f) {
      TF_RETURN_IF_ERROR(FeatureOf(batches[b], f, &next, &(*parts)[f]));
    }
    if (next != batches[b].size()) return NotSo(spec_->features.back());
  }
  return absl::OkStatus();
}

absl::Status StepLayout::FeatureOf(const StepBatch& batch, int feature,
                                   size_t* next, FeatureParts* parts) const {
  const FeatureSpec& spec = spec_->features[feature];
  const auto take = [&](DataType dtype) -> const Tensor* {
    if (*next >= batch.size() || batch[*next].dtype() != dtype) return nullptr;
    return &batch[(*next)++];
  };
  parts->batch_size = batch_sizes_[feature];
  parts->columns = -1;
  parts->rows = &no_rows_;
  parts->weights = &no_weights_;
  parts->ids = take(id_dtypes_[feature]);
  if (spec.kind != FeatureKind::kDense) {
    parts->rows = take(tensorflow::DT_INT64);
    parts->weights = take(tensorflow::DT_FLOAT);
  }
  if (!parts->ids || !parts->rows || !parts->weights) return NotSo(spec);
  if (spec.kind != FeatureKind::kSparse) return absl::OkStatus();
  const Tensor* const shape = take(tensorflow::DT_INT64);
  if (shape == nullptr || shape->shape() != tensorflow::TensorShape({2})) {
    return NotSo(spec);
  }
  parts->columns = shape->flat<int64_t>()(1);
  return absl::OkStatus();
}

}  // namespace tfembed
