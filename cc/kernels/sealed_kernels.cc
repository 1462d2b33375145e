// Kernels that lay tables out for lookups that never write.
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cc/core/sealed/perfect_hash.h"
#include "cc/core/support/executor.h"
#include "cc/kernels/kernel_context.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

class PerfectHashOp : public tensorflow::OpKernel {
 public:
  explicit PerfectHashOp(tensorflow::OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("regions", &sizes_.regions));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("buckets", &sizes_.buckets));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("places", &sizes_.places));
    OP_REQUIRES(construction, sizes_.AreValid(),
                absl::InvalidArgumentError(
                    "`regions` must be a power of two, and its products with "
                    "`buckets` and `places` positive and below 2^32"));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& hashes = context->input(0);
    const tensorflow::Tensor& splits = context->input(1);
    OP_REQUIRES_OK(context, Check(hashes, splits, context->input(2)));
    const int64_t first = context->input(2).scalar<int64_t>()();
    const int64_t count = splits.NumElements() - 1;
    tensorflow::Tensor* pilots = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, {count * sizes_.buckets}, &pilots));
    tensorflow::Tensor* is_found = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &is_found));
    const auto* all =
        reinterpret_cast<const uint64_t*>(hashes.vec<int64_t>().data());
    const auto begins = splits.vec<int64_t>();
    uint16_t* const found = pilots->vec<uint16_t>().data();
    FirstError error;
    TfExecutor executor(context);
    ParallelFor(&executor, count, [&](int64_t i) {
      const PilotSearch search = FindPilots(
          sizes_, first + i,
          absl::MakeSpan(all + begins(i), begins(i + 1) - begins(i)),
          absl::MakeSpan(found + i * sizes_.buckets, sizes_.buckets));
      if (search == PilotSearch::kNotOfRegion) {
        error.Update(i, absl::InvalidArgumentError(absl::StrCat(
                            "`hashes` of region ", first + i,
                            " must be sorted, distinct and of the region")));
      } else if (search == PilotSearch::kNotFound) {
        error.Update(i, absl::NotFoundError(""));
      }
    });
    const absl::Status& status = error.status();
    OP_REQUIRES(context, status.ok() || absl::IsNotFound(status), status);
    is_found->scalar<bool>()() = status.ok();
  }

 private:
  // Eager calls run no shape function, so ranks are checked here as well.
  absl::Status Check(const tensorflow::Tensor& hashes,
                     const tensorflow::Tensor& splits,
                     const tensorflow::Tensor& first) const {
    bool fits = hashes.dims() == 1 && splits.dims() == 1 && first.dims() == 0 &&
                splits.NumElements() > 0;
    if (fits) {
      const auto begins = splits.vec<int64_t>();
      const int64_t count = begins.size() - 1;
      const int64_t region = first.scalar<int64_t>()();
      fits = count <= sizes_.regions && region >= 0 &&
             region <= sizes_.regions - count && begins(0) == 0 &&
             begins(count) == hashes.NumElements();
      for (int64_t i = 0; fits && i < count; ++i) {
        fits = begins(i) <= begins(i + 1);
      }
    }
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "`splits` must cut `hashes` into the hashes of regions from `first` "
        "on");
  }

  PerfectHashSizes sizes_;
};

TFEMBED_KERNEL(PerfectHash, PerfectHashOp);

}  // namespace
}  // namespace tfembed
