// Kernels of the ops that look up and update many tables at once.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/step/grouped_update.h"
#include "cc/kernels/grouped_inputs.h"
#include "cc/kernels/grouped_tables.h"
#include "cc/kernels/kernel_context.h"
#include "cc/kernels/lookup_kernel.h"
#include "cc/kernels/update_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class GroupedLookupOp : public LookupKernel {
 public:
  using LookupKernel::LookupKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<FeatureParts> parts;
    OP_REQUIRES_OK(context, ReadParts(context, spec(), &parts));
    OP_REQUIRES_OK(context, LookUp(context, parts));
  }
};

class GroupedLookupGradientOp : public OpKernel {
 public:
  explicit GroupedLookupGradientOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, spec_.Read(construction));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Sum(context));
  }

 private:
  absl::Status Sum(OpKernelContext* context) {
    std::vector<FeatureParts> parts;
    TF_RETURN_IF_ERROR(ReadParts(context, spec_, &parts));
    std::vector<FeatureTensors> tensors;
    TF_RETURN_IF_ERROR(ReadFeatures(spec_, parts, &tensors));
    BatchStrings strings;
    TF_RETURN_IF_ERROR(strings.Number(spec_, &tensors));
    TF_RETURN_IF_ERROR(CheckDistinctDtypes(context, strings));
    std::vector<const float*> gradients;
    TF_RETURN_IF_ERROR(ReadGradients(context, spec_, tensors, &gradients));
    std::vector<bool> fixed_vocabulary;
    TF_RETURN_IF_ERROR(ReadFixedVocabulary(context, &fixed_vocabulary));
    TfExecutor executor(context);
    std::vector<FeatureInput> features;
    TF_RETURN_IF_ERROR(
        BuildFeatures(spec_, tensors, fixed_vocabulary, &executor, &features));
    std::vector<std::vector<BagGradients>> by_table(spec_.dims.size());
    for (int f = 0; f < features.size(); ++f) {
      const int t = spec_.features[f].table;
      by_table[t].push_back({features[f].bags(), gradients[f], spec_.dims[t]});
    }
    for (int t = 0; t < by_table.size(); ++t) {
      absl::StatusOr<SummedGradients> summed =
          SumGradients(by_table[t], spec_.dims[t], &executor);
      if (!summed.ok()) return summed.status();
      TF_RETURN_IF_ERROR(Output(context, t, *summed, strings));
    }
    return absl::OkStatus();
  }

  // Distinct ids come out as they came in.
  absl::Status CheckDistinctDtypes(OpKernelContext* context,
                                   const BatchStrings& strings) const {
    for (int t = 0; t < spec_.dims.size(); ++t) {
      const tensorflow::DataType dtype = context->expected_output_dtype(t);
      if (strings.are_strings(t) == (dtype == tensorflow::DT_STRING)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "`Tdistinct` must be the dtype of the ids of each table; got ",
          tensorflow::DataTypeString(dtype), " for table ", t, "."));
    }
    return absl::OkStatus();
  }

  absl::Status Output(OpKernelContext* context, int t,
                      const SummedGradients& summed,
                      const BatchStrings& strings) {
    const int64_t n = summed.ids.size();
    const int tables = spec_.dims.size();
    Tensor *ids, *sums;
    TF_RETURN_IF_ERROR(context->allocate_output(t, TensorShape({n}), &ids));
    TF_RETURN_IF_ERROR(context->allocate_output(
        tables + t, TensorShape({n, spec_.dims[t]}), &sums));
    if (strings.are_strings(t)) {
      tensorflow::tstring* to = ids->flat<tensorflow::tstring>().data();
      for (int64_t number : summed.ids) {
        const absl::string_view text = strings.strings(t)[number];
        (to++)->assign(text.data(), text.size());
      }
    } else {
      std::copy(summed.ids.begin(), summed.ids.end(),
                ids->flat<int64_t>().data());
    }
    std::copy(summed.rows.begin(), summed.rows.end(),
              sums->flat<float>().data());
    return absl::OkStatus();
  }

  GroupedSpec spec_;
};

TFEMBED_KERNEL(GroupedLookup, GroupedLookupOp);
TFEMBED_KERNEL(GroupedLookupGradient, GroupedLookupGradientOp);

class GroupedUpdateOp : public UpdateKernel {
 public:
  using UpdateKernel::UpdateKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<FeatureParts> parts;
    OP_REQUIRES_OK(context, ReadParts(context, spec(), &parts));
    OP_REQUIRES_OK(context, Update(context, parts));
  }
};

TFEMBED_KERNEL(GroupedUpdate, GroupedUpdateOp);

class TrainableRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const TensorShape& keys = context->input(1).shape();
    TensorShape leading = context->input(2).shape();
    if (leading.dims() > 0) leading.RemoveLastDims(1);
    OP_REQUIRES(context, context->input(2).dims() > 0 && keys == leading,
                absl::InvalidArgumentError(
                    absl::StrCat("Expected rows of shape ", keys.DebugString(),
                                 " + [dim] for the keys, got ",
                                 context->input(2).shape().DebugString())));
    context->set_output(0, context->input(2));
  }
};

class TableTokenOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    Tensor* token = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &token));
    token->scalar<float>()() = 0;
  }
};

TFEMBED_KERNEL(TableToken, TableTokenOp);
TFEMBED_KERNEL(TrainableRows, TrainableRowsOp);
TFEMBED_KERNEL(TrainableRowsOf, TrainableRowsOp);

}  // namespace

}  // namespace tfembed
