// Ops that write tables as raw files and read such files.
#include <cstdint>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

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
    .SetIsStateful()
    .SetShapeFn(SaveFilesShape)
    .Doc(R"doc(
Writes the shards `tables` as pairs of raw files in `folder`, `stems`[i]-keys
and `stems`[i]-values, in place of what is there or, with `append`, behind it.
Copies `buffer_size` rows at a time; all rows are of one moment. Files that were
there stay whole until all new ones are. AlreadyExists where they hold rows of
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
    .SetShapeFn(CheckFilesShape)
    .Doc(R"doc(
Finds the pairs of raw files `stems` [m] in `folder` and checks that each holds
`dim` values for each of its keys and, where a manifest says so, is unchanged.
`paths` [m, 2] and `sizes` [m, 2], in bytes, are those of keys and values. The
`tables` are those that rows will go to: a function orders its ops by them.
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
    .SetShapeFn(ReadFilesShape)
    .Doc(R"doc(
Reads `keys` [n] and `values` [n, dim] of a pair of raw files that was checked,
from the byte `offsets` [2] on; n is at most `max_rows` and 0 at the end.
)doc");

}  // namespace
}  // namespace tfembed
