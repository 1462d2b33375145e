// Ops that bring tables into checkpoints, raw files and tensors, and back.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/ops/signatures.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// Handles and the prefix are scalars, and the shards of all tables make up N.
absl::Status CheckTables(InferenceContext* context, int64_t* num_tables) {
  ShapeHandle unused;
  for (int i = 0; i < context->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &unused));
  }
  std::vector<std::string> names;
  std::vector<int64_t> counts;
  TF_RETURN_IF_ERROR(context->GetAttr("tensor_names", &names));
  TF_RETURN_IF_ERROR(context->GetAttr("shard_counts", &counts));
  *num_tables = static_cast<int64_t>(names.size());
  const int64_t shards = std::accumulate(counts.begin(), counts.end(), 0LL);
  if (names.size() == counts.size() && shards == context->num_inputs() - 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("`shard_counts` must tell for each of the ", names.size(),
                   " tables how many of the ", context->num_inputs() - 1,
                   " handles are its own; got ", counts.size(), " counts of ",
                   shards, " handles."));
}

absl::Status SaveShape(InferenceContext* context) {
  int64_t num_tables;
  return CheckTables(context, &num_tables);
}

absl::Status RestoreShape(InferenceContext* context) {
  int64_t num_tables;
  TF_RETURN_IF_ERROR(CheckTables(context, &num_tables));
  for (const char* list : {"keep_seeds", "deal_rows", "load_slots"}) {
    std::vector<bool> flags;
    TF_RETURN_IF_ERROR(context->GetAttr(list, &flags));
    if (static_cast<int64_t>(flags.size()) != num_tables) {
      return absl::InvalidArgumentError(
          absl::StrCat("`", list, "` must have one entry for each of the ",
                       num_tables, " tables; got ", flags.size(), "."));
    }
  }
  context->set_output(0, context->Vector(num_tables));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableSave")
    .Input("tables: N * resource")
    .Input("prefix: string")
    .Attr("N: int >= 1")
    .Attr("tensor_names: list(string)")
    .Attr("shard_counts: list(int)")
    .Attr("with_slots: bool = true")
    .Attr("shard_numbers: list(int) = []")
    .Attr("all_shards: list(int) = []")
    .Attr("owners: list(string) = []")
    .Attr("owner: int = 0")
    .Attr("token: string = ''")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(SaveShape))
    .Doc(R"doc(
Writes tables as one checkpoint bundle, `prefix`.index and .data-*. Table t,
whose shards are the next `shard_counts[t]` of `tables`, becomes the tensors
`tensor_names[t]`/keys [n], /values [n, dim], /slots/... [n, dim], /layout, and
/waiting/keys [m], /waiting/seen [m] where keys wait for admission, in slices. The
save takes a few chunks of memory; all rows are of one moment. With `with_slots`
false the checkpoint is that of tables without an optimizer.

Where tables lie in several processes, each of the `owners` runs the op, all at the
same time, for the same tables: number `owner` writes its part, `prefix`_owner, of
which MergeV2Checkpoints makes one checkpoint. `shard_numbers` are those of its
handles among `all_shards`[t] of table t. Before, a file `prefix`.meeting-`token` is
made, for all to see. FailedPrecondition: it is not on a shared file system.
)doc");

REGISTER_OP("Tfembed>TableRestore")
    .Input("tables: N * resource")
    .Input("prefix: string")
    .Output("layouts: string")
    .Attr("N: int >= 1")
    .Attr("tensor_names: list(string)")
    .Attr("shard_counts: list(int)")
    .Attr("keep_seeds: list(bool)")
    .Attr("deal_rows: list(bool)")
    .Attr("load_slots: list(bool)")
    .Attr("shard_numbers: list(int) = []")
    .Attr("all_shards: list(int) = []")
    .Attr("only_check: bool = false")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(RestoreShape))
    .Doc(R"doc(
Replaces the content of tables by that of the checkpoint `prefix`, saved from
any number of shards. Everything is read and checked first; an error leaves all
tables as they were. Rows go to shard floormod(key, number of shards);
`deal_rows` false leaves that table empty instead, to be filled by
`Tfembed>TableReadChunk` and `Tfembed>TableImport`. The keys that wait are left to
`Tfembed>TableReadWaiting` and `Tfembed>TableImportWaiting` in all tables. A table
takes over the saved seed of its initial rows unless `keep_seeds`, and the saved
slots with `load_slots`. `layouts` are the checkpoint's descriptions of the tables.
Where tables lie in several processes, each runs the op, with `shard_numbers` and
`all_shards` as for `Tfembed>TableSave`: first all with `only_check`, which changes
nothing.
)doc");

absl::Status ChooseShape(InferenceContext* context) {
  ShapeHandle shards, unused;
  const int last = context->num_inputs() - 1;
  for (int i = 0; i < last; ++i) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &unused));
  }
  TF_RETURN_IF_ERROR(context->WithRank(context->input(last), 1, &shards));
  context->set_output(0, shards);
  context->set_output(1, context->Vector(context->UnknownDim()));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableChoose")
    .Input("tables: N * resource")
    .Input("prefix: string")
    .Input("shards: int32")
    .Output("stays: bool")
    .Output("begins: int64")
    .Attr("N: int >= 1")
    .Attr("tensor_name: string")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ChooseShape))
    .Doc(R"doc(
Says which rows of the saved table `tensor_name` stay where row i goes to
`tables`[`shards`[i]], of bounded size: `stays` [n], those that eviction would keep
of each shard; -1 where another process has it. InvalidArgument where the checkpoint lacks the notes that tell them.
Chunk c of `Tfembed>TableReadChunk` are rows `begins`[c] to `begins`[c + 1]. No table
is changed.
)doc");

REGISTER_OP("Tfembed>CheckpointRead")
    .Input("prefix: string")
    .Output("tensors: dtypes")
    .Attr("tensor_names: list(string)")
    .Attr("dtypes: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &unused));
      return tensorflow::shape_inference::UnknownShape(context);
    })
    .Doc(R"doc(
Reads the named tensors of the checkpoint `prefix`, of any program; [0] for a
tensor that is not there.
)doc");

REGISTER_OP("Tfembed>CheckpointCheck")
    .Input("prefix: string")
    .Output("names: string")
    .Output("dtypes: int32")
    .Attr("checksums: bool = true")
    .SetIsStateful()
    .SetShapeFn(WithinMemory([](InferenceContext* context) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &unused));
      const auto n = context->UnknownDim();
      context->set_output(0, context->Vector(n));
      context->set_output(1, context->Vector(n));
      return absl::OkStatus();
    }))
    .Doc(R"doc(
Reads all files of the checkpoint `prefix`, of any program, and compares their
checksums; with `checksums` false compares the index with the files' sizes only. An error names the file, and the tensor where it is known.
Returns the names of the tensors, and their dtypes as numbers of the enum.
)doc");

REGISTER_OP("Tfembed>CheckDistinct")
    .Input("keys: Tkey")
    .Attr("Tkey: {int32, int64, string}")
    .Attr("table_name: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Checks that no two `keys`, which were read for a table, are the same. Takes two
bytes a key.
)doc");

REGISTER_OP("Tfembed>PerfectHash")
    .Input("hashes: int64")
    .Input("splits: int64")
    .Input("first: int64")
    .Output("pilots: uint16")
    .Output("is_found: bool")
    .Attr("regions: int >= 1")
    .Attr("buckets: int >= 1")
    .Attr("places: int >= 1")
    .SetShapeFn(WithinMemory([](InferenceContext* context) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &unused));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &unused));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 0, &unused));
      context->set_output(0, context->Vector(context->UnknownDim()));
      context->set_output(1, context->Scalar());
      return absl::OkStatus();
    }))
    .Doc(R"doc(
Finds the pilots of a sealed table's perfect hash (docs/formats/sealed_table.md)
for regions from `first` on: `hashes[splits[i]:splits[i + 1]]` are the sorted
hashes of region `first` + i, unsigned. Without `is_found` a region has no perfect hash of so few places.
)doc");

absl::Status SnapshotShape(InferenceContext* context) {
  for (int input = 0; input < context->num_inputs(); ++input) {
    TF_RETURN_IF_ERROR(CheckHandle(context, input));
  }
  const auto n = context->UnknownDim(), waiting = context->UnknownDim();
  context->set_output(0, context->Vector(n));
  context->set_output(1, context->Matrix(n, context->UnknownDim()));
  context->set_output(2, context->Matrix(n, context->UnknownDim()));
  context->set_output(3, context->Vector(context->UnknownDim()));
  context->set_output(4, context->Vector(waiting));
  context->set_output(5, context->Vector(waiting));
  context->set_output(
      6, context->Matrix(context->UnknownDim(), context->UnknownDim()));
  context->set_output(7, context->Vector(2));
  return absl::OkStatus();
}

absl::Status ImportNotesShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  ShapeHandle keys, notes;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &keys));
  TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 1, &notes));
  TF_RETURN_IF_ERROR(context->Merge(keys, notes, &keys));
  return context->WithRank(context->input(3), 0, &notes);
}

absl::Status ImportCountersShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(CheckHandle(context, 0));
  ShapeHandle kind;
  return context->WithRank(context->input(2), 0, &kind);
}

REGISTER_OP("Tfembed>TableSnapshot")
    .Input("tables: N * resource")
    .Output("keys: Tkey")
    .Output("values: Tvalue")
    .Output("slots: float")
    .Output("notes: int64")
    .Output("waiting: Tkey")
    .Output("seen: int32")
    .Output("counters: uint8")
    .Output("kinds: string")
    .Attr("N: int >= 1")
    .Attr("only_rows: bool = false")
    .Attr(TFEMBED_KEYS_ATTR)
    .Attr(TFEMBED_VALUES_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(SnapshotShape))
    .Doc(R"doc(
Copies all shards of a table at one moment: all `keys` [n], shard after shard and
in no particular order in each; their rows `values` [n, dim] and `slots` [n, floats
of all slots]; the eviction policy's `notes` [n] on them, or [0] where it notes
nothing; the keys `waiting` [m] for admission, and `seen` [m], in how many steps
each was seen; and the `counters` [blocks of all shards, bytes] of an admission
whose keys share some. `kinds` [2] name the meaning of notes and counters, "" where
there are none. With `only_rows` the outputs of the policies are empty.
)doc");

REGISTER_OP("Tfembed>TableImportNotes")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Input("notes: int64")
    .Input("kind: string")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ImportNotesShape))
    .Doc(R"doc(
Gives the rows of `keys` [n] the notes of a `Tfembed>TableSnapshot`, where the
table's policy notes the same `kind`; else changes nothing. Keys without a row are
ignored.
)doc");

REGISTER_OP("Tfembed>TableImportCounters")
    .Input("table: resource")
    .Input("counters: uint8")
    .Input("kind: string")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ImportCountersShape))
    .Doc(R"doc(
Takes over the `counters` of a `Tfembed>TableSnapshot`, where the table's counters
have the same `kind` and shape; else changes nothing.
)doc");

absl::Status ReadChunkShape(InferenceContext* context) {
  ShapeHandle unused;
  for (int i = 0; i < 3; ++i) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &unused));
  }
  const auto n = context->UnknownDim();
  context->set_output(0, context->Vector(n));
  context->set_output(1, context->Matrix(n, context->UnknownDim()));
  context->set_output(2, context->Scalar());
  return absl::OkStatus();
}

absl::Status ReadWaitingShape(InferenceContext* context) {
  TF_RETURN_IF_ERROR(ReadChunkShape(context));
  context->set_output(1, context->Vector(context->UnknownDim()));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableReadChunk")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("chunk: int64")
    .Output("keys: Tkey")
    .Output("full_rows: float")
    .Output("num_chunks: int64")
    .Attr("Tkey: {int64, string} = DT_INT64")
    .Attr("tensor_name: string")
    .Attr("load_slots: bool = true")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ReadChunkShape))
    .Doc(R"doc(
Reads chunk number `chunk` of a saved table as `table` would import it: `keys` [n],
int32 ones widened, and `full_rows` as in `Tfembed>TableImport`. Slots that the
table has and the checkpoint lacks are initial. The table is not changed.
)doc");

REGISTER_OP("Tfembed>TableReadWaiting")
    .Input("table: resource")
    .Input("prefix: string")
    .Input("chunk: int64")
    .Output("keys: Tkey")
    .Output("seen: int32")
    .Output("num_chunks: int64")
    .Attr("Tkey: {int64, string} = DT_INT64")
    .Attr("tensor_name: string")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ReadWaitingShape))
    .Doc(R"doc(
Reads chunk number `chunk` of the keys [n] that waited for admission when the table
was saved, and in how many steps each had been `seen` [n]. Where no key waited,
chunk 0 is empty.
)doc");

absl::Status SaveFilesShape(InferenceContext* context) {
  const int stems = context->num_inputs() - 1;
  ShapeHandle unused;
  for (int i = 0; i < stems; ++i) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &unused));
  }
  return context->Merge(context->input(stems), context->Vector(stems - 1),
                        &unused);
}

absl::Status CheckFilesShape(InferenceContext* context) {
  const int last = context->num_inputs() - 1;
  ShapeHandle stems;
  for (int i = 0; i < last; ++i) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &stems));
  }
  TF_RETURN_IF_ERROR(context->WithRank(context->input(last), 1, &stems));
  const ShapeHandle pairs = context->Matrix(context->Dim(stems, 0), 2);
  context->set_output(0, pairs);
  context->set_output(1, pairs);
  return absl::OkStatus();
}

absl::Status ReadFilesShape(InferenceContext* context) {
  ShapeHandle unused;
  for (int i = 0; i < 2; ++i) {
    TF_RETURN_IF_ERROR(
        context->Merge(context->input(i), context->Vector(2), &unused));
  }
  int64_t dim;
  TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
  const auto n = context->UnknownDim();
  context->set_output(0, context->Vector(n));
  context->set_output(1, context->Matrix(n, dim));
  context->set_output(2, context->Vector(2));
  return absl::OkStatus();
}

REGISTER_OP("Tfembed>TableSaveFiles")
    .Input("tables: N * resource")
    .Input("folder: string")
    .Input("stems: string")
    .Attr("N: int >= 1")
    .Attr("buffer_size: int >= 1")
    .Attr("append: bool = false")
    .Attr("owner: string = ''")
    .Attr("deal_by_low_bits: bool = false")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(SaveFilesShape))
    .Doc(R"doc(
Writes the shards `tables` as pairs of raw files in `folder`, `stems`[i]-keys
and `stems`[i]-values, in place of files that are there or, with `append`, behind
their rows.
Copies `buffer_size` rows at a time; all rows are of one moment. Files that were
there stay whole until all new ones are. With `deal_by_low_bits` a row goes into
pair (key & 0x7fffffff) % N in place of that of its shard. AlreadyExists where files hold rows of
another table: `owner` is an id of the table that all `tables` are shards of.
)doc");

REGISTER_OP("Tfembed>RowFilesCheck")
    .Input("tables: N * resource")
    .Input("folder: string")
    .Input("stems: string")
    .Output("paths: string")
    .Output("sizes: int64")
    .Attr("N: int >= 1")
    .Attr("key_dtype: type")
    .Attr("value_dtype: type")
    .Attr("dim: int >= 0")
    .Attr("owner: string = ''")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(CheckFilesShape))
    .Doc(R"doc(
Finds the pairs of raw files `stems` [m] in `folder` and checks that each holds
`dim` values for each of its keys and, where a manifest says so, is unchanged.
`paths` [m, 2] and `sizes` [m, 2], in bytes, are of keys and values. The rows will
go to `tables`: a function orders its ops by them.
`owner` is an id of the table whose shards they are.
)doc");

REGISTER_OP("Tfembed>RowFilesRead")
    .Input("paths: string")
    .Input("offsets: int64")
    .Output("keys: key_dtype")
    .Output("values: value_dtype")
    .Output("next_offsets: int64")
    .Attr("key_dtype: type")
    .Attr("value_dtype: type")
    .Attr("dim: int >= 0")
    .Attr("max_rows: int >= 1")
    .SetIsStateful()
    .SetShapeFn(WithinMemory(ReadFilesShape))
    .Doc(R"doc(
Reads `keys` [n] and `values` [n, dim] of a pair of raw files that was checked,
from the byte `offsets` [2] on; n is at most `max_rows` and 0 at the end.
)doc");

}  // namespace

}  // namespace tfembed
