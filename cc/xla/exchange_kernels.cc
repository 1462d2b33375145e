// The kernels of cc/ops/exchange_ops.cc: read, check, build the program.
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cc/core/optimizers/update_rule.h"
#include "cc/core/support/guard_memory.h"
#include "cc/kernels/kernel_registration.h"
#include "cc/xla/exchange.h"
#include "cc/xla/rows.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace tfembed {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::TensorShape;
using ::tensorflow::XlaOpKernel;
using ::tensorflow::XlaOpKernelContext;

absl::Status Invalid(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

absl::Status ReadExchange(OpKernelConstruction* context,
                          ExchangeShape* exchange) {
  absl::Status status = context->GetAttr("replicas", &exchange->replicas);
  if (status.ok()) status = context->GetAttr("buffer", &exchange->buffer);
  return status;
}

absl::Status CheckInputs(const ExchangeShape& exchange,
                         const TensorShape& shard, const TensorShape& ids) {
  if (shard.dims() != 2 || shard.dim_size(0) == 0 || shard.dim_size(1) == 0) {
    return Invalid(
        absl::StrCat("A shard must be [rows, width], neither of "
                     "them 0; got ",
                     shard.DebugString(), "."));
  }
  if (ids.dims() != 1 || ids.dim_size(0) == 0) {
    return Invalid(
        absl::StrCat("`ids` must be [n], n > 0; got ", ids.DebugString(), "."));
  }
  const int64_t limit = std::numeric_limits<int32_t>::max();
  if (shard.dim_size(0) >= limit / exchange.replicas ||
      exchange.buffer >= limit / exchange.replicas ||
      ids.dim_size(0) >= limit - exchange.buffer) {
    return Invalid(absl::StrCat(
        "Rows are numbered by int32: ", exchange.replicas, " replicas of ",
        shard.dim_size(0), " rows, a buffer of ", exchange.buffer, " and ",
        ids.dim_size(0), " ids are too many."));
  }
  return absl::OkStatus();
}

class ExchangeLookupKernel : public XlaOpKernel {
 public:
  explicit ExchangeLookupKernel(OpKernelConstruction* context)
      : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, ReadExchange(context, &exchange_));
  }

  void Compile(XlaOpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckInputs(exchange_, context->InputShape(0),
                                        context->InputShape(1)));
    const FoundRows found =
        LookUp(exchange_, context->Input(0), context->Input(1));
    context->SetOutput(0, found.rows);
    context->SetOutput(1, found.rounds);
  }

 private:
  ExchangeShape exchange_;
};

class ExchangeUpdateKernel : public XlaOpKernel {
 public:
  explicit ExchangeUpdateKernel(OpKernelConstruction* context)
      : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, ReadExchange(context, &exchange_));
    OP_REQUIRES_OK(context,
                   context->GetAttr("table_rows", &training_.table_rows));
    std::string nonfinite;
    OP_REQUIRES_OK(context, context->GetAttr("nonfinite", &nonfinite));
    training_.skip_nonfinite = nonfinite == "skip";
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule_text_));
    absl::StatusOr<std::unique_ptr<UpdateRule>> rule =
        UpdateRule::Parse(rule_text_);
    OP_REQUIRES_OK(context, rule.status());
    rule_ = *std::move(rule);
    training_.rule = rule_.get();
    bool portable;
    OP_REQUIRES_OK(context, context->GetAttr("portable", &portable));
    on_cpu_ =
        !portable && context->device_type() == tensorflow::DEVICE_CPU_XLA_JIT;
  }

  void Compile(XlaOpKernelContext* context) override {
    OP_REQUIRES_OK(context, Check(context));
    TrainedRows state;
    state.values = context->Input("values");
    std::vector<TensorShape> shapes;
    OP_REQUIRES_OK(context, context->InputList("slots", &state.slots, &shapes));
    const int64_t tables = training_.table_rows.size();
    state.nonfinite = Zeros(context->builder(), xla::S32, {tables});
    UpdatedRows updated =
        Updated(context->Input("learning_rate"), context->Input("ids"),
                context->Input("gradients"), std::move(state));
    int output = 0;
    context->SetOutput(output++, updated.state.values);
    for (xla::XlaOp slot : updated.state.slots) {
      context->SetOutput(output++, slot);
    }
    context->SetOutput(output++, updated.rounds);
    context->SetOutput(output, updated.state.nonfinite);
  }

 private:
  UpdatedRows Updated(xla::XlaOp learning_rate, xla::XlaOp ids,
                      xla::XlaOp gradients, TrainedRows state) const {
    if (on_cpu_ && exchange_.replicas == 1 && !rule_->moves_all_rows()) {
      return UpdateOnCpu(training_, rule_text_, learning_rate, ids, gradients,
                         std::move(state));
    }
    return Update(exchange_, training_, learning_rate, ids, gradients,
                  std::move(state));
  }

  absl::Status Check(XlaOpKernelContext* context) const {
    const TensorShape shard = context->InputShape("values");
    const TensorShape ids = context->InputShape("ids");
    absl::Status status = CheckInputs(exchange_, shard, ids);
    if (!status.ok()) return status;
    int64_t rows = 0;
    for (int64_t table : training_.table_rows) rows += table;
    if (rows != shard.dim_size(0)) {
      return Invalid(absl::StrCat("`table_rows` must sum up to the ",
                                  shard.dim_size(0), " rows of the shard; got ",
                                  rows, "."));
    }
    const TensorShape rate = context->InputShape("learning_rate");
    if (rate != TensorShape({})) {
      return Invalid(absl::StrCat("`learning_rate` must be a scalar; got ",
                                  rate.DebugString(), "."));
    }
    const TensorShape gradients = context->InputShape("gradients");
    if (gradients != TensorShape({ids.dim_size(0), shard.dim_size(1)})) {
      return Invalid(absl::StrCat("`gradients` must be [", ids.dim_size(0),
                                  ", ", shard.dim_size(1), "]; got ",
                                  gradients.DebugString(), "."));
    }
    return CheckSlots(context, shard);
  }

  absl::Status CheckSlots(XlaOpKernelContext* context,
                          const TensorShape& shard) const {
    std::vector<xla::XlaOp> slots;
    std::vector<TensorShape> shapes;
    absl::Status status = context->InputList("slots", &slots, &shapes);
    if (!status.ok()) return status;
    const std::vector<std::string>& names = rule_->slot_names();
    if (shapes.size() != names.size()) {
      return Invalid(absl::StrCat("`", rule_->name(), "` has ", names.size(),
                                  " slots; got ", shapes.size(), "."));
    }
    for (size_t s = 0; s < names.size(); ++s) {
      const bool row_wise = rule_->row_wise_slots() >> s & 1;
      const TensorShape wanted(
          {shard.dim_size(0), row_wise ? 1 : shard.dim_size(1)});
      if (shapes[s] != wanted) {
        return Invalid(absl::StrCat("Slot `", names[s], "` must be ",
                                    wanted.DebugString(), "; got ",
                                    shapes[s].DebugString(), "."));
      }
    }
    return absl::OkStatus();
  }

  ExchangeShape exchange_;
  RowTraining training_;
  std::string rule_text_;
  std::unique_ptr<UpdateRule> rule_;
  bool on_cpu_ = false;
};

// A kernel whose program may be refused memory while it is built.
template <class Kernel>
class BuiltWithinMemory : public Kernel {
 public:
  using Kernel::Kernel;

  void Compile(XlaOpKernelContext* context) override {
    GuardMemory([&] { Kernel::Compile(context); },
                [&] { context->SetStatus(MemoryRefused()); });
  }
};

// REGISTER_XLA_OP adds kernels to a list that TensorFlow reads once, before its
// first op: a program that loads this library later would not get them.
#define REGISTER_EXCHANGE(device)                                              \
  TFEMBED_REGISTER_KERNEL(                                                     \
      ::tensorflow::KernelDefBuilder("Tfembed>ExchangeLookup").Device(device), \
      BuiltWithinMemory<ExchangeLookupKernel>);                                \
  TFEMBED_REGISTER_KERNEL(                                                     \
      ::tensorflow::KernelDefBuilder("Tfembed>ExchangeUpdate").Device(device), \
      BuiltWithinMemory<ExchangeUpdateKernel>)

REGISTER_EXCHANGE(tensorflow::DEVICE_CPU_XLA_JIT);
REGISTER_EXCHANGE(tensorflow::DEVICE_GPU_XLA_JIT);
REGISTER_EXCHANGE("XLA_TPU_JIT");

#undef REGISTER_EXCHANGE

}  // namespace
}  // namespace tfembed
