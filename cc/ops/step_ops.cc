// Ops on all features of a step at once, over any number of tables, and on the
// batches that wait in a queue between the calls. Only XLA has kernels for the
// exchange ops (cc/xla).
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/feature_shapes.h"
#include "cc/ops/signatures.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status CreateQueueShape(InferenceContext* context) {
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

absl::Status StepLookupShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(ActivationsShapes(context, &shapes));
  for (size_t f = 0; f < shapes.size(); ++f) {
    context->set_output(f, shapes[f]);
  }
  return absl::OkStatus();
}

absl::Status StepUpdateShape(InferenceContext* context) {
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
    .SetShapeFn(WithinMemory(CreateQueueShape))
    .Doc(R"doc(
Makes the queue of one replica's batches: the enqueued ones, and the batch in
flight between a lookup and its update. `label` [] names the queue in errors. While
`most_batches` are enqueued, StepPut waits for up to `seconds`. With `waits`,
StepPut, StepTake and StepFinish wait as long as need be; StepLookup and StepUpdate
never wait. With `drops_unfinished`, a batch for training need not be finished.
Without a `shared_name` each call makes a queue of its own, which goes with its
last handle; with one, the queue of that name is made once.
)doc");

REGISTER_OP("Tfembed>StepPut")
    .Input("queue: resource")
    .Input("parts: T")
    .Attr("T: " TFEMBED_PART_DTYPES)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(QueueShape))
    .Doc(R"doc(
Enqueues a batch: bool [], whether the batch is for training, and its tensors.
InvalidArgument where there is no room, and none comes in time.
)doc");

REGISTER_OP("Tfembed>StepTake")
    .Input("queue: resource")
    .Output("parts: T")
    .Attr("T: " TFEMBED_PART_DTYPES)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(PartsShape))
    .Doc(R"doc(
Removes the oldest enqueued batch, after StepDropIdle. InvalidArgument where the
queue is empty.
)doc");

REGISTER_OP("Tfembed>StepDropIdle")
    .Input("queue: resource")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(QueueShape))
    .Doc(R"doc(
Forgets the batch in flight, if there is one. A batch that was enqueued for
training stays, with InvalidArgument, unless the queue has `drops_unfinished`.
)doc");

REGISTER_OP("Tfembed>StepHold")
    .Input("queue: resource")
    .Input("parts: T")
    .Attr("T: " TFEMBED_PART_DTYPES)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(QueueShape))
    .Doc(R"doc(
Puts a batch in flight that StepTake has removed.
)doc");

REGISTER_OP("Tfembed>StepFinish")
    .Input("queue: resource")
    .Output("parts: T")
    .Attr("T: " TFEMBED_PART_DTYPES)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(PartsShape))
    .Doc(R"doc(
Removes the batch in flight. InvalidArgument where there is none, or where the
batch was not enqueued for training.
)doc");

REGISTER_OP("Tfembed>StepSizes")
    .Input("queue: resource")
    .Output("sizes: int32")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(SizesShape))
    .Doc(R"doc(
Returns the number of enqueued batches, and of batches for training in flight.
)doc");

REGISTER_OP("Tfembed>StepClear")
    .Input("queue: resource")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(QueueShape))
    .Doc(R"doc(
Forgets all batches.
)doc");

REGISTER_OP("Tfembed>StepLookup")
    .Input("queue: resource")
    .Input("tables: T * resource")
    .Output("activations: F * float") TFEMBED_FEATURE_ATTRS
    .Attr("batch_sizes: list(int) >= 1")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(StepLookupShape))
    .Doc(R"doc(
Does StepTake, GroupedLookup of the batch, and StepHold where the lookup did not
fail. A batch that cannot be looked up is lost. After its first tensor, a batch has
for each feature its ids; rows and weights unless the feature is dense; and the
dense shape [2], whose batch size is not read, if the feature is sparse. The rest
is as for GroupedLookup.
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
    .Attr("norm_limits: list(float) = []")
    .Attr("norm_groups: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(StepUpdateShape))
    .Doc(R"doc(
Does StepFinish of all queues, then GroupedUpdate with their batches: the features
of the first queue's batch, then the features of the next one's, and so on.
)doc");

// Reads the features of a grouped op on `tables`.
absl::Status ReadGroupedShapes(InferenceContext* context,
                               FeatureShapes* features) {
  std::vector<ShapeHandle> tables;
  TF_RETURN_IF_ERROR(context->input("tables", &tables));
  ShapeHandle unused;
  for (ShapeHandle table : tables) {
    TF_RETURN_IF_ERROR(context->WithRank(table, 0, &unused));
  }
  return ReadFeatureShapes(context, features);
}

absl::Status GroupedLookupShape(InferenceContext* context) {
  FeatureShapes features;
  TF_RETURN_IF_ERROR(ReadGroupedShapes(context, &features));
  SetActivations(context, features);
  return absl::OkStatus();
}

absl::Status GroupedGradientShape(InferenceContext* context) {
  FeatureShapes features;
  TF_RETURN_IF_ERROR(ReadGroupedShapes(context, &features));
  TF_RETURN_IF_ERROR(CheckGradientShapes(context, features));
  const int tables = features.dims.size();
  std::vector<tensorflow::DataType> distinct;
  TF_RETURN_IF_ERROR(context->GetAttr("Tdistinct", &distinct));
  if (distinct.size() != tables) {
    return absl::InvalidArgumentError(
        absl::StrCat("`Tdistinct` must have one entry for each of the ", tables,
                     " tables; got ", distinct.size(), "."));
  }
  for (int t = 0; t < tables; ++t) {
    const DimensionHandle n = context->UnknownDim();
    context->set_output(t, context->Vector(n));
    context->set_output(tables + t,
                        context->Matrix(n, context->MakeDim(features.dims[t])));
  }
  return absl::OkStatus();
}

absl::Status GroupedUpdateShape(InferenceContext* context) {
  FeatureShapes features;
  TF_RETURN_IF_ERROR(ReadGroupedShapes(context, &features));
  TF_RETURN_IF_ERROR(CheckGradientShapes(context, features));
  const int64_t tables = features.dims.size();
  TF_RETURN_IF_ERROR(CheckLearningRates(context, tables));
  context->set_output(0, context->Vector(tables));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>GroupedLookup")
    .Input("tables: T * resource") TFEMBED_FEATURE_INPUTS
    .Output("activations: F * float") TFEMBED_FEATURE_ATTRS.SetIsStateful()
    .SetShapeFn(WithinMemory(GroupedLookupShape))
    .Doc(R"doc(
Looks up and combines the ids of all features. `tables` are tf.Variables
[vocabulary, dim] or tables of TableCreate. A feature has `ids` [n], strings where
its table's keys are strings, `rows` by its kind (dense: empty; ragged: row splits [batch + 1]; sparse: sorted indices
[n, 2]) and `weights` [n] or [0]. A row of sparse ids has `columns` [F] places,
any number where that is below 0. Activations are [batch, dim], or
[batch, max_sequence_length, dim] where the length is not 0. Empty rows are zeros.
)doc");

REGISTER_OP("Tfembed>GroupedLookupGradient")
    .Input("tables: T * resource") TFEMBED_FEATURE_INPUTS
    .Input("gradients: F * float")
    .Output("distinct_ids: Tdistinct")
    .Output("sums: T * float") TFEMBED_FEATURE_ATTRS
    .Attr("Tdistinct: list({int64, string}) >= 1")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(GroupedGradientShape))
    .Doc(R"doc(
Returns the gradient of GroupedLookup for each table: its distinct ids, integers
ascending, strings in the order in which they first come, and the sum
[distinct, dim] of each id's gradients over all features. `Tdistinct` is the dtype
of each table's ids.
)doc");

// `rules` is one string, a line a table: eager TensorFlow takes two lists of
// strings for the same kernel where they differ only in the middle of an entry
// of over 80 characters.
REGISTER_OP("Tfembed>GroupedUpdate")
    .Input("tables: T * resource")
    .Input("slots: S * resource") TFEMBED_FEATURE_INPUTS
    .Input("gradients: F * float")
    .Input("learning_rates: float")
    .Output("nonfinite_rows: int64")
    .Attr("S: int >= 0") TFEMBED_FEATURE_ATTRS.Attr("rules: string")
    .Attr("table_names: list(string) = []")
    .Attr("nonfinite: {'skip', 'refuse', 'allow'} = 'skip'")
    .Attr("norm_limits: list(float) = []")
    .Attr("norm_groups: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(GroupedUpdateShape))
    .Doc(R"doc(
Sums the gradients of each distinct id over all features of its table and
applies the table's rule once to its row and slots. `rules` has a line for each
table (a list of strings would not do, since eager TensorFlow takes two of them
for the same where only the middle of a long string differs). `slots` are the slot
variables of the tables that are tf.Variables, table by table, in the order of
the rule's slots. `nonfinite_rows` [T] counts sums with a NaN or an infinity,
which `nonfinite` skips, refuses before anything is changed, or allows.
Tables of one number in `norm_groups` have one Euclidean norm, of all sums that are
finite. Where it is above their `norm_limits`, the same in a group and 0 for none,
their gradients are scaled down to it. Both lists have an entry a table, or none.
`table_names` are for errors. Without a name, or with '', a table that is no
tf.Variable has its own name there, and a tf.Variable its index.
)doc");

absl::Status SplitAlignedShape(InferenceContext* context) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &unused));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &unused));
  ShapeHandle sizes;
  TF_RETURN_IF_ERROR(context->Merge(
      context->input(1), context->Vector(context->num_outputs()), &sizes));
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->Vector(InferenceContext::kUnknownDim));
  }
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>SplitAligned")
    .Input("values: int64")
    .Input("sizes: int64")
    .Output("parts: N * int64")
    .Attr("N: int >= 1")
    .SetShapeFn(WithinMemory(SplitAlignedShape))
    .Doc(R"doc(
Splits `values` [n] into `parts` [sizes[i]]. Each part begins where the part before
ends, or at the next multiple of 8 values. So all parts are aligned as TensorFlow wants
them, and are views of `values` where `values` is aligned. Gaps are padding.

A size below 0 and parts beyond the values are InvalidArgument.
)doc");

absl::Status TrainableRowsOfShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckRows(context, 1, 2));
  context->set_output(0, context->input(2));
  return absl::OkStatus();
}

absl::Status TrainableRowsShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  return TrainableRowsOfShape(context);
}

REGISTER_OP("Tfembed>TrainableRows")
    .Input("anchor: resource")
    .Input("keys: Tkey")
    .Input("rows: float")
    .Output("trainable_rows: float")
    .Attr("Tkey: {int64, string} = DT_INT64")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(TrainableRowsShape))
    .Doc(R"doc(
Hands `rows` [..., dim], looked up for `keys` [...], on unchanged. Its gradient
goes to `anchor`, any resource handle, as IndexedSlices of the keys.
)doc");

REGISTER_OP("Tfembed>TrainableRowsOf")
    .Input("anchor: float")
    .Input("keys: Tkey")
    .Input("rows: float")
    .Output("trainable_rows: float")
    .Attr("Tkey: {int64, string} = DT_INT64")
    .SetShapeFn(WithinMemory(TrainableRowsOfShape))
    .Doc(R"doc(
Does the same as TrainableRows with a variable's value, of any dtype, as `anchor`.
So the gradient goes to that variable, which freezing can turn into a constant.
)doc");

absl::Status TableTokenShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableToken")
    .Input("table: resource")
    .Output("token: float")
    .SetShapeFn(WithinMemory(TableTokenShape))
    .Doc(R"doc(
Makes a number, 0, that stands for a table of another process in TrainableRowsOf,
whose rows need not go there. Slices as its gradient go on to `table`.
)doc");

absl::Status ExchangeLookupShape(InferenceContext* context) {
  ShapeHandle shard;
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &shard));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &ids));
  context->set_output(
      0, context->Matrix(context->Dim(ids, 0), context->Dim(shard, 1)));
  context->set_output(1, context->Scalar());
  return absl::OkStatus();
}

absl::Status ExchangeUpdateShape(InferenceContext* context) {
  std::vector<ShapeHandle> slots;
  std::vector<ShapeHandle> input;
  TF_RETURN_IF_ERROR(context->input("slots", &slots));
  ShapeHandle shard;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &shard));
  TF_RETURN_IF_ERROR(context->input("ids", &input));
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(context->WithRank(input[0], 1, &ids));
  TF_RETURN_IF_ERROR(context->input("gradients", &input));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->Merge(
      input[0], context->Matrix(context->Dim(ids, 0), context->Dim(shard, 1)),
      &unused));
  TF_RETURN_IF_ERROR(context->input("learning_rate", &input));
  TF_RETURN_IF_ERROR(context->WithRank(input[0], 0, &unused));
  context->set_output(0, shard);
  for (int s = 0; s < slots.size(); ++s) {
    ShapeHandle slot;
    TF_RETURN_IF_ERROR(context->WithRank(slots[s], 2, &slot));
    DimensionHandle rows;
    TF_RETURN_IF_ERROR(
        context->Merge(context->Dim(slot, 0), context->Dim(shard, 0), &rows));
    context->set_output(1 + s, slot);
  }
  std::vector<int64_t> table_rows;
  TF_RETURN_IF_ERROR(context->GetAttr("table_rows", &table_rows));
  context->set_output(1 + slots.size(), context->Scalar());
  context->set_output(2 + slots.size(), context->Vector(table_rows.size()));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>ExchangeLookup")
    .Input("shard: float")
    .Input("ids: int32")
    .Output("rows: float")
    .Output("rounds: int32")
    .Attr("replicas: int >= 1")
    .Attr("buffer: int >= 1")
    .SetShapeFn(WithinMemory(ExchangeLookupShape))
    .Doc(R"doc(
Looks up the rows [n, width] of `ids` [n]: id i is row i / replicas of `shard` [rows, width] on
replica i % replicas. An id outside of [0, replicas * rows) gives zeros. Each
replica sends at most `buffer` distinct ids to each other one in a round; `rounds`
is their number, the same on all replicas.
)doc");

REGISTER_OP("Tfembed>ExchangeUpdate")
    .Input("values: float")
    .Input("slots: S * float")
    .Input("ids: int32")
    .Input("gradients: float")
    .Input("learning_rate: float")
    .Output("updated_values: float")
    .Output("updated_slots: S * float")
    .Output("rounds: int32")
    .Output("nonfinite_rows: int32")
    .Attr("S: int >= 0")
    .Attr("rule: string")
    .Attr("table_rows: list(int) >= 1")
    .Attr("replicas: int >= 1")
    .Attr("buffer: int >= 1")
    .Attr("nonfinite: {'skip', 'allow'} = 'skip'")
    .Attr("portable: bool = false")
    .SetShapeFn(WithinMemory(ExchangeUpdateShape))
    .Doc(R"doc(
Sums `gradients` [n, width] of each distinct id of `ids` [n] over all replicas and
applies `rule` once to its row of `values` [rows, width] and of `slots`, [rows,
width] or [rows, 1]. Ids and `buffer` are as for ExchangeLookup. The rows belong
to tables one after another, `table_rows` to each. `nonfinite_rows` [tables]
counts this replica's rows whose sum has a NaN or an infinity, which `nonfinite`
skips or allows. On a CPU, a single replica calls this library's own loops unless the
program is to be `portable`.
)doc");

}  // namespace

}  // namespace tfembed
