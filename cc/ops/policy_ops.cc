// Ops on what a table shard's policies keep, and on how it was used.
#include <cstdint>

#include "absl/status/status.h"
#include "cc/ops/dtypes.h"
#include "cc/ops/shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::shape_inference::InferenceContext;

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
    .SetShapeFn(EvictShape)
    .Doc(R"doc(
Removes `keys`, of any shape, and counts those that were there as evicted.
)doc");

REGISTER_OP("Tfembed>TableWorth")
    .Input("table: resource")
    .Output("keys: Tkey")
    .Output("worth: double")
    .Attr("policy: string = ''")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(WorthShape)
    .Doc(R"doc(
All `keys` [n] and what their rows are `worth` [n] by an eviction policy, as of
one moment and in no particular order: the lowest go first. An empty `policy` is
that of the table.
)doc");

REGISTER_OP("Tfembed>TableImportWaiting")
    .Input("table: resource")
    .Input("keys: Tkey")
    .Input("seen: int32")
    .Attr(TFEMBED_KEYS_ATTR)
    .SetIsStateful()
    .SetShapeFn(ImportWaitingShape)
    .Doc(R"doc(
Has `keys` [n] wait for the table's admission as if training had `seen` [n] each
in so many steps, at least one; those that have a row do not, and no key of a
table without an admission.
)doc");

REGISTER_OP("Tfembed>TableUse")
    .Input("table: resource")
    .Output("use: int64")
    .SetIsStateful()
    .SetShapeFn(UseShape)
    .Doc(R"doc(
How the table was used since it was made, what it takes and how it is filled, in
this order - hits, misses, keys that training inserted, ids that it refused, keys
evicted, rows with a NaN upserted, bytes of values, of slots, of meta words, of
policies, places of the index, buckets read to find each key once, the most for
one key.
)doc");

}  // namespace
}  // namespace tfembed
