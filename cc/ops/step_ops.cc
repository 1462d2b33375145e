// Ops on the batches of a step, which wait in a queue between the calls.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/feature_attrs.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status CreateShape(InferenceContext* context) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &unused));
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

absl::Status QueueShape(InferenceContext* context) {
  return CheckHandle(context, 0);
}

absl::Status PartsShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->UnknownShape());
  }
  return absl::OkStatus();
}

absl::Status SizesShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  context->set_output(0, context->Vector(2));
  return absl::OkStatus();
}

// The shapes of all features' activations, which the attributes tell.
absl::Status ActivationsShapes(InferenceContext* context,
                               std::vector<ShapeHandle>* shapes) {
  std::vector<int64_t> table_ids, lengths, dims, batch_sizes;
  TF_RETURN_IF_ERROR(context->GetAttr("table_ids", &table_ids));
  TF_RETURN_IF_ERROR(context->GetAttr("max_sequence_lengths", &lengths));
  TF_RETURN_IF_ERROR(context->GetAttr("dims", &dims));
  TF_RETURN_IF_ERROR(context->GetAttr("batch_sizes", &batch_sizes));
  int count;
  TF_RETURN_IF_ERROR(context->GetAttr("F", &count));
  for (size_t size : {table_ids.size(), lengths.size(), batch_sizes.size()}) {
    if (size == count) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "`table_ids`, `max_sequence_lengths` and `batch_sizes` must have one "
        "entry for each of the ",
        count, " features; one has ", size, "."));
  }
  for (int f = 0; f < count; ++f) {
    if (table_ids[f] < 0 || table_ids[f] >= dims.size() || batch_sizes[f] < 0 ||
        lengths[f] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("Feature ", f, " must have one of the ", dims.size(),
                       " tables, and no size below 0; got table ", table_ids[f],
                       ", batch size ", batch_sizes[f], ", sequence length ",
                       lengths[f], "."));
    }
    std::vector<DimensionHandle> sizes = {context->MakeDim(batch_sizes[f])};
    if (lengths[f] > 0) sizes.push_back(context->MakeDim(lengths[f]));
    sizes.push_back(context->MakeDim(dims[table_ids[f]]));
    shapes->push_back(context->MakeShape(sizes));
  }
  return absl::OkStatus();
}

absl::Status LookupShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(ActivationsShapes(context, &shapes));
  for (size_t f = 0; f < shapes.size(); ++f) {
    context->set_output(f, shapes[f]);
  }
  return absl::OkStatus();
}

absl::Status UpdateShape(InferenceContext* context) {
  int num_queues;
  TF_RETURN_IF_ERROR(context->GetAttr("R", &num_queues));
  for (int r = 0; r < num_queues; ++r) {
    TF_RETURN_IF_ERROR(CheckHandle(context, r));
  }
  std::vector<ShapeHandle> shapes, gradients, rates;
  TF_RETURN_IF_ERROR(ActivationsShapes(context, &shapes));
  TF_RETURN_IF_ERROR(context->input("gradients", &gradients));
  ShapeHandle unused;
  for (size_t f = 0; f < shapes.size(); ++f) {
    TF_RETURN_IF_ERROR(context->Merge(gradients[f], shapes[f], &unused));
  }
  int64_t tables;
  TF_RETURN_IF_ERROR(context->GetAttr("T", &tables));
  TF_RETURN_IF_ERROR(context->input("learning_rates", &rates));
  TF_RETURN_IF_ERROR(context->Merge(
      rates[0], context->Vector(context->MakeDim(tables)), &unused));
  context->set_output(0, context->Vector(tables));
  return absl::OkStatus();
}

#define TFEMBED_PART_DTYPES "list({bool, int64, string, float}) >= 1"

REGISTER_OP("Tfembed>StepQueueCreate")
    .Input("label: string")
    .Output("queue: resource")
    .Attr("most_batches: int >= 1")
    .Attr("seconds: float")
    .Attr("waits: bool = false")
    .Attr("drops_unfinished: bool = false")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(CreateShape)
    .Doc(R"doc(
Makes the queue of one replica's batches: those that are enqueued, and what is in
flight between a lookup and its update. `label` [] says in errors whose it is. Where
`most_batches` are enqueued StepPut waits for up to `seconds`. With `waits`, StepPut,
StepTake and StepFinish wait for as long as it takes; StepLookup and StepUpdate never do. With `drops_unfinished`, a batch for
training need not be finished. Without a `shared_name` each call makes a queue of its
own, which goes with its last handle; with one, the queue of that name is made once.
)doc");

REGISTER_OP("Tfembed>StepPut")
    .Input("queue: resource")
    .Input("parts: T")
    .Attr("T: " TFEMBED_PART_DTYPES)
    .SetIsStateful()
    .SetShapeFn(QueueShape)
    .Doc(R"doc(
Enqueues a batch: bool [], whether it is for training, and what else travels. Where
there is no room, and none comes in time, it is InvalidArgument.
)doc");

REGISTER_OP("Tfembed>StepTake")
    .Input("queue: resource")
    .Output("parts: T")
    .Attr("T: " TFEMBED_PART_DTYPES)
    .SetIsStateful()
    .SetShapeFn(PartsShape)
    .Doc(R"doc(
Removes the oldest enqueued batch, after StepDropIdle. InvalidArgument where none is
there.
)doc");

REGISTER_OP("Tfembed>StepDropIdle")
    .Input("queue: resource")
    .SetIsStateful()
    .SetShapeFn(QueueShape)
    .Doc(R"doc(
Forgets the batch that is in flight, if there is one. One that was enqueued for
training stays, and is InvalidArgument, unless the queue drops what is unfinished.
)doc");

REGISTER_OP("Tfembed>StepHold")
    .Input("queue: resource")
    .Input("parts: T")
    .Attr("T: " TFEMBED_PART_DTYPES)
    .SetIsStateful()
    .SetShapeFn(QueueShape)
    .Doc(R"doc(
Puts a batch that was taken in flight.
)doc");

REGISTER_OP("Tfembed>StepFinish")
    .Input("queue: resource")
    .Output("parts: T")
    .Attr("T: " TFEMBED_PART_DTYPES)
    .SetIsStateful()
    .SetShapeFn(PartsShape)
    .Doc(R"doc(
Removes the batch that is in flight. InvalidArgument where none is, or where it was
not enqueued for training.
)doc");

REGISTER_OP("Tfembed>StepSizes")
    .Input("queue: resource")
    .Output("sizes: int32")
    .SetIsStateful()
    .SetShapeFn(SizesShape)
    .Doc(R"doc(
How many batches are enqueued, and how many in flight that are for training.
)doc");

REGISTER_OP("Tfembed>StepClear")
    .Input("queue: resource")
    .SetIsStateful()
    .SetShapeFn(QueueShape)
    .Doc(R"doc(
Forgets all batches.
)doc");

REGISTER_OP("Tfembed>StepLookup")
    .Input("queue: resource")
    .Input("tables: T * resource")
    .Output("activations: F * float") TFEMBED_FEATURE_ATTRS
    .Attr("batch_sizes: list(int) >= 1")
    .SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc(R"doc(
StepTake, GroupedLookup of what it took, and StepHold where that did not fail. A
batch that cannot be looked up is lost. A batch has, after its first tensor, per
feature its ids, unless it is dense its rows and weights, and if it is sparse its
dense shape [2], of which the batch size is not read; all else as GroupedLookup
takes it.
)doc");

REGISTER_OP("Tfembed>StepUpdate")
    .Input("queues: R * resource")
    .Input("tables: T * resource")
    .Input("slots: S * resource")
    .Input("gradients: F * float")
    .Input("learning_rates: float")
    .Output("nonfinite_rows: int64")
    .Attr("R: int >= 1")
    .Attr("S: int >= 0") TFEMBED_FEATURE_ATTRS
    .Attr("batch_sizes: list(int) >= 1")
    .Attr("rules: string")
    .Attr("table_names: list(string) = []")
    .Attr("nonfinite: {'skip', 'refuse', 'allow'} = 'skip'")
    .SetIsStateful()
    .SetShapeFn(UpdateShape)
    .Doc(R"doc(
StepFinish of all queues, and GroupedUpdate for what they gave: features are those
of the first queue's batch, then those of the next one's, and so on.
)doc");

}  // namespace
}  // namespace tfembed
