// Ops on one shard of a table without a fixed vocabulary: rows by key, keys,
// what policies keep, and rows as update rules outside of the core move them.
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/signatures.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status DimOf(InferenceContext* context, int64_t* dim) {
  TF_RETURN_IF_ERROR(context->GetAttr("dim", dim));
  return *dim >= 0 ? absl::OkStatus()
                   : absl::InvalidArgumentError(absl::StrCat(
                         "`dim` must not be negative; got ", *dim, "."));
}

absl::Status CreateShape(InferenceContext* context) {
  int64_t dim;
  TF_RETURN_IF_ERROR(DimOf(context, &dim));
  tensorflow::DataType values;
  TF_RETURN_IF_ERROR(context->GetAttr("value_dtype", &values));
  context->set_output(0, context->Scalar());
  // The handle's shape has no rows, as its gradient of zeros has none.
  context->set_output_handle_shapes_and_types(
      0, std::vector<tensorflow::shape_inference::ShapeAndType>{
             {context->Matrix(0, dim), values}});
  return absl::OkStatus();
}

absl::Status HandleShape(InferenceContext* context) {
  return CheckHandle(context, 0);
}

absl::Status HandlesShape(InferenceContext* context) {
  int64_t tables;
  TF_RETURN_IF_ERROR(context->GetAttr("N", &tables));
  for (int i = 0; i < tables; ++i) TF_RETURN_IF_ERROR(CheckHandle(context, i));
  return absl::OkStatus();
}

absl::Status LookupShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  int64_t dim;
  TF_RETURN_IF_ERROR(DimOf(context, &dim));
  ShapeHandle values;
  TF_RETURN_IF_ERROR(RowsShape(context, context->input(1), dim, &values));
  context->set_output(0, values);
  context->set_output(1, context->input(1));
  return absl::OkStatus();
}

absl::Status UpsertShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  return CheckRows(context, 1, 2);
}

absl::Status AccumShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(UpsertShape(context));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(
      context->Merge(context->input(1), context->input(3), &unused));
  if (context->num_inputs() > 5) {
    return absl::InvalidArgumentError("At most one tensor of old_values");
  }
  return context->num_inputs() > 4 ? CheckRows(context, 1, 4)
                                   : absl::OkStatus();
}

absl::Status SizeShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

absl::Status StatsShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  context->set_output(0, context->Vector(4));
  return absl::OkStatus();
}

absl::Status ImportShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &unused));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 2, &unused));
  return CheckRows(context, 1, 2);
}

REGISTER_OP("Tfembed>TableCreate")
    .Output("table: resource")
    .Attr("dim: int")
    .Attr("table_name: string = ''")
    .Attr("initializer: string = 'constant'")
    .Attr("initializer_args: list(string) = ['0']")
    .Attr("key_dtype: " TFEMBED_KEY_DTYPES " = DT_INT64")
    .Attr("value_dtype: " TFEMBED_VALUE_DTYPES " = DT_FLOAT")
    .Attr("seed: int = 0")
    .Attr("init_size: int = 0")
    .Attr("admission: string = ''")
    .Attr("eviction: string = ''")
    .Attr("max_size: int = 0")
    .Attr("missing_value: list(float) = []")
    .Attr("stochastic_rounding: bool = false")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(CreateShape))
    .Doc(R"doc(
Makes an empty table of keys and rows of `dim` numbers. `initializer_args` are
numbers as text, which is exact for doubles.
Without a `shared_name` each call makes a table of its own, whose memory goes
with its last handle. With one, the table of that name is made once and found
again. Missing keys read as initial rows, drawn from (seed, key) alone, or as
`missing_value`, if there is one. `admission` and `eviction` are policies as
text, '' for none. A table of `max_size`, unless that is 0, makes room by its
eviction policy. With `stochastic_rounding`, rows of half or bfloat16 that are
trained or added to are rounded up or down by chance, with the right mean, and
not to the nearest number.
)doc");

REGISTER_OP("Tfembed>TableCreateV2")
    .Input("table_name: string")
    .Input("seed: int64")
    .Output("table: resource")
    .Attr("dim: int")
    .Attr("initializer: string = 'constant'")
    .Attr("initializer_args: list(string) = ['0']")
    .Attr("key_dtype: " TFEMBED_KEY_DTYPES " = DT_INT64")
    .Attr("value_dtype: " TFEMBED_VALUE_DTYPES " = DT_FLOAT")
    .Attr("init_size: int = 0")
    .Attr("admission: string = ''")
    .Attr("eviction: string = ''")
    .Attr("max_size: int = 0")
    .Attr("missing_value: list(float) = []")
    .Attr("stochastic_rounding: bool = false")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(CreateShape))
    .Doc(R"doc(
Makes a table as TableCreate does without a `shared_name`, for eager execution,
which keeps a kernel of some 40 KB for each value of an attribute, for ever. So
`table_name` and `seed`, which differ in all tables, are scalar inputs.
)doc");

REGISTER_OP("Tfembed>TableLookup")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Output("values: Tvalue")
    .Output("exists: bool")
    .Attr("dim: int")
    .Attr(TFEMBED_KEYS_ATTR)
    .Attr(TFEMBED_VALUES_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(LookupShape))
    .Doc(R"doc(
Looks up the rows of `keys` [...] as `values` [..., dim]. A missing key reads its
initial row, and is not inserted. `exists` [...] tells which keys are in the table.
)doc");

REGISTER_OP("Tfembed>TableUpsert")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Input("values: Tvalue")
    .Attr(TFEMBED_KEYS_ATTR)
    .Attr(TFEMBED_VALUES_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(UpsertShape))
    .Doc(R"doc(
Writes `values` [..., dim] as the rows of `keys` [...], and inserts missing keys.
The last row of a repeated key stays.
)doc");

REGISTER_OP("Tfembed>TableAccum")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Input("values_or_deltas: Tvalue")
    .Input("exists: bool")
    .Input("old_values: num_old_values * Tvalue")
    .Attr("num_old_values: int >= 0 = 0")
    .Attr(TFEMBED_KEYS_ATTR)
    .Attr(TFEMBED_VALUES_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(AccumShape))
    .Doc(R"doc(
Adds to the rows of keys that exist as `exists` says, inserts the rows of keys
that do not exist as `exists` says, and leaves all others alone: somebody inserted
or removed such keys meanwhile. Adds `values_or_deltas`, or the difference between
`values_or_deltas` and `old_values` where there is one tensor of old values.
)doc");

REGISTER_OP("Tfembed>TableRemove")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(HandleShape))
    .Doc(
        "Removes `keys`, of any shape; keys that are not in the table are "
        "ignored.");

REGISTER_OP("Tfembed>TableClear")
    .Input("tables: N * resource")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(HandlesShape))
    .Doc(R"doc(
Removes all keys of all `tables` and gives their memory back to the system; no
export shows some of the tables cleared and others not.
)doc");

REGISTER_OP("Tfembed>TableReplace")
    .Input("tables: N * resource")
    .Input("keys: N * Tkey")
    .Input("rows: N * Tvalue")
    .Attr("N: int >= 1")
    .Attr("trained: bool = false")
    .Attr(TFEMBED_KEYS_ATTR)
    .Attr(TFEMBED_VALUES_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(HandlesShape))
    .Doc(R"doc(
Replaces the content of table i by `rows[i]` of `keys[i]`: values, or with
`trained` value and slots as floats. An export shows all tables before or all
after. Everything is checked first; where memory runs out later, the tables hold
a part.
)doc");

REGISTER_OP("Tfembed>TableSize")
    .Input("table: resource")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(SizeShape))
    .Doc("Returns the number of keys in the table.");

REGISTER_OP("Tfembed>TableSeed")
    .Input("table: resource")
    .Output("seed: int64")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(SizeShape))
    .Doc("Returns the seed of the initial rows, which a restore may change.");

REGISTER_OP("Tfembed>TableStats")
    .Input("table: resource")
    .Output("stats: int64")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(StatsShape))
    .Doc(R"doc(
Returns the size of the table: [keys, keys that fit before the index grows,
bytes of the index, bytes of the rows].
)doc");

REGISTER_OP("Tfembed>TableImport")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Input("full_rows: float")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ImportShape))
    .Doc(R"doc(
Writes any number of `keys` [n] with their full rows; other keys of the table stay.
`full_rows` [n, width] are rows as they lie in memory, in words of 4 bytes: [n, dim
+ floats of all slots] where values are floats and there are no policies.
)doc");

REGISTER_OP("Tfembed>TableSetSlots")
    .Input("table: resource")
    .Attr("owner: string")
    .Attr("names: list(string)")
    .Attr("initial_values: list(float)")
    .Attr("row_wise: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(HandleShape))
    .Doc(R"doc(
Lays the slots of the update rule `owner` out in every row, present rows
included. A slot has dim floats, or one float where `row_wise` names it. The same
rule again changes nothing; another rule is refused.
)doc");

REGISTER_OP("Tfembed>TableDropSlots")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(HandleShape))
    .Doc(R"doc(
Takes the slots out of every row, so that another update rule may lay its own out.
Values and the notes of policies stay.
)doc");

absl::Status KeysShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status ContainsShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  context->set_output(0, context->input(1));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableKeys")
    .Input("table: resource")
    .Output("keys: Tkey")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(KeysShape))
    .Doc(R"doc(
Returns all `keys` [n] of the table at one moment, in no particular order. No row
is read or copied.
)doc");

REGISTER_OP("Tfembed>TableContains")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Output("exists: bool")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ContainsShape))
    .Doc(
        "Tells which of `keys`, of any shape, are in the table. No row is "
        "read.");

constexpr int64_t kUseCounts = 13;

absl::Status EvictShape(InferenceContext* context) {
  return CheckHandle(context, 0);
}

absl::Status WorthShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  const auto n = context->UnknownDim();
  context->set_output(0, context->Vector(n));
  context->set_output(1, context->Vector(n));
  return absl::OkStatus();
}

absl::Status ImportWaitingShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  tensorflow::shape_inference::ShapeHandle keys, seen;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &keys));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 1, &seen));
  return context->Merge(keys, seen, &keys);
}

absl::Status UseShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  context->set_output(0, context->Vector(kUseCounts));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableEvict")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(EvictShape))
    .Doc(R"doc(
Removes `keys`, of any shape, and counts the keys that were there as evicted.
)doc");

REGISTER_OP("Tfembed>TableWorth")
    .Input("table: resource")
    .Output("keys: Tkey")
    .Output("worth: double")
    .Attr("policy: string = ''")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(WorthShape))
    .Doc(R"doc(
Returns all `keys` [n] at one moment, in no particular order, and the `worth` [n]
of their rows by an eviction policy: the lowest go first. An empty `policy` stands
for the table's own.
)doc");

REGISTER_OP("Tfembed>TableImportWaiting")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Input("seen: int32")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ImportWaitingShape))
    .Doc(R"doc(
Lets `keys` [n] wait for the table's admission as if training had seen each key in
`seen` [n] steps, at least one. A key that has a row does not wait, nor does any
key of a table without an admission.
)doc");

REGISTER_OP("Tfembed>TableUse")
    .Input("table: resource")
    .Output("use: int64")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(UseShape))
    .Doc(R"doc(
Returns how the table was used since it was made, its memory, and how full it is,
in this order - hits, misses, keys that training inserted, ids that it refused, keys
evicted, rows with a NaN upserted, bytes of values, of slots, of meta words, of
policies, places of the index, buckets read to find each key once, the most for
one key.
)doc");

constexpr int64_t kSurveyCounts = 18;

absl::Status SurveyShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 0, &scalar));
  const auto n = context->UnknownDim();
  for (int i = 0; i < 4; ++i) context->set_output(i, context->Vector(n));
  context->set_output(2, context->Vector(context->UnknownDim()));
  context->set_output(4, context->Vector(kSurveyCounts));
  return absl::OkStatus();
}

absl::Status TopShape(InferenceContext* context) {
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 0, &scalar));
  return WorthShape(context);
}

REGISTER_OP("Tfembed>TableSurvey")
    .Input("table: resource")
    .Input("rows: int64")
    .Output("keys: Tkey")
    .Output("norms: double")
    .Output("worth: double")
    .Output("trained: bool")
    .Output("counts: int64")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(SurveyShape))
    .Doc(R"doc(
Picks about so many `rows`, as if by chance, or takes all there are. Returns their
`keys` [n]; the Euclidean `norms` [n] of their values, -1 with a NaN; their `worth`
[n] by the table's own eviction policy, [0] without one; whether they were `trained`
[n], which is whether the slots, or of rows without slots the value, differ from those
of a new row. `counts` are those of TableStats, those of TableUse, where the buckets
read are those for the picked keys alone, and the keys that wait for admission.
)doc");

REGISTER_OP("Tfembed>TableTop")
    .Input("table: resource")
    .Input("most: int64")
    .Output("keys: Tkey")
    .Output("worth: double")
    .Attr("policy: string = ''")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(TopShape))
    .Doc(R"doc(
Returns the `most` rows of the highest worth by an eviction policy, or all there are,
the highest first: their `keys` [n] and `worth` [n]. An empty `policy` stands for the
table's own. Reads all rows and copies none.
)doc");

absl::Status LookupTrainedShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  int64_t width;
  TF_RETURN_IF_ERROR(context->GetAttr("width", &width));
  if (width < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`width` must not be negative; got ", width, "."));
  }
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(RowsShape(context, context->input(1), width, &rows));
  context->set_output(0, rows);
  return absl::OkStatus();
}

absl::Status WriteTrainedShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  return CheckRows(context, 1, 2);
}

REGISTER_OP("Tfembed>TableLookupTrained")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Output("rows: float")
    .Attr("width: int")
    .Attr("owner: string = ''")
    .Attr("slot_names: list(string) = []")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(LookupTrainedShape))
    .Doc(R"doc(
Looks up value and slots of `keys` [...] as floats, `rows` [..., width], where
width is dim and the floats of all slots. A missing key reads its initial row and
slots, and is not inserted. FailedPrecondition where the slots are not `slot_names`
of the rule `owner`; an empty one stands for any rule.
)doc");

REGISTER_OP("Tfembed>TableWriteTrained")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Input("rows: float")
    .Attr("add: bool = false")
    .Attr("owner: string = ''")
    .Attr("slot_names: list(string) = []")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(WriteTrainedShape))
    .Doc(R"doc(
Writes `rows` [..., dim + floats of all slots] as value and slots of `keys` [...],
or with `add` adds to them. A missing key is inserted with its initial row and
slots first. `owner` and `slot_names` are as in `Tfembed>TableLookupTrained`.
)doc");

}  // namespace

}  // namespace tfembed
