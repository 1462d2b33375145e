// Kernels of the ops that make a table and look at the whole of it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cc/core/embedding_table.h"
#include "cc/core/initial_rows.h"
#include "cc/kernels/scalar_input.h"
#include "cc/kernels/table_dtypes.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::ResourceHandle;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class TableCreateOp : public OpKernel {
 public:
  explicit TableCreateOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, ReadAttributes(construction));
    // Said when the op is made, not when it first runs.
    OP_REQUIRES_OK(construction, MakeInitialRows(identity_.seed).status());
  }

  void Compute(OpKernelContext* context) override {
    Identity identity = identity_;
    if (num_inputs() > 0) {
      OP_REQUIRES_OK(context, ReadIdentity(context, &identity));
    }
    OP_REQUIRES_OK(context, Create(context, identity));
  }

 private:
  // In what tables of one kernel differ.
  struct Identity {
    std::string name;
    int64_t seed = 0;
  };

  static absl::Status ReadIdentity(OpKernelContext* context,
                                   Identity* identity) {
    tensorflow::tstring name;
    TF_RETURN_IF_ERROR(ReadScalar(context, 0, "table_name", &name));
    identity->name = name;
    return ReadScalar(context, 1, "seed", &identity->seed);
  }

  absl::Status ReadAttributes(OpKernelConstruction* construction) {
    TF_RETURN_IF_ERROR(construction->GetAttr("dim", &options_.dim));
    TF_RETURN_IF_ERROR(
        construction->GetAttr("init_size", &options_.initial_capacity));
    TF_RETURN_IF_ERROR(construction->GetAttr("initializer", &initializer_));
    TF_RETURN_IF_ERROR(ReadArguments(construction));
    TF_RETURN_IF_ERROR(ReadDtypes(construction));
    TF_RETURN_IF_ERROR(construction->GetAttr("stochastic_rounding",
                                             &options_.stochastic_rounding));
    TF_RETURN_IF_ERROR(ReadPolicies(construction));
    if (num_inputs() > 0) return absl::OkStatus();  // TableCreateV2.
    TF_RETURN_IF_ERROR(construction->GetAttr("table_name", &identity_.name));
    TF_RETURN_IF_ERROR(construction->GetAttr("seed", &identity_.seed));
    return construction->GetAttr("shared_name", &shared_name_);
  }

  absl::Status ReadArguments(OpKernelConstruction* construction) {
    std::vector<std::string> texts;
    TF_RETURN_IF_ERROR(construction->GetAttr("initializer_args", &texts));
    for (const std::string& text : texts) {
      if (absl::SimpleAtod(text, &initializer_args_.emplace_back())) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "`initializer_args` must be numbers; got '", text, "'."));
    }
    return absl::OkStatus();
  }

  absl::Status ReadDtypes(OpKernelConstruction* construction) {
    tensorflow::DataType keys, values;
    TF_RETURN_IF_ERROR(construction->GetAttr("key_dtype", &keys));
    TF_RETURN_IF_ERROR(construction->GetAttr("value_dtype", &values));
    TF_RETURN_IF_ERROR(FindKeyKind(keys, &options_.keys));
    return FindValueType(values, &options_.type);
  }

  absl::Status ReadPolicies(OpKernelConstruction* construction) {
    TF_RETURN_IF_ERROR(construction->GetAttr("admission", &options_.admission));
    TF_RETURN_IF_ERROR(construction->GetAttr("eviction", &options_.eviction));
    TF_RETURN_IF_ERROR(construction->GetAttr("max_size", &options_.max_size));
    std::vector<float> missing_value;
    TF_RETURN_IF_ERROR(construction->GetAttr("missing_value", &missing_value));
    if (missing_value.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`missing_value` must be one number or none; got ",
                       missing_value.size(), "."));
    }
    if (!missing_value.empty()) options_.missing_value = missing_value[0];
    return absl::OkStatus();
  }

  absl::StatusOr<InitialRows> MakeInitialRows(int64_t seed) const {
    return InitialRows::Create(initializer_, initializer_args_,
                               static_cast<uint64_t>(seed), options_.dim,
                               options_.type);
  }

  absl::Status NewTable(const Identity& identity,
                        TableResource** resource) const {
    auto initial_rows = MakeInitialRows(identity.seed);
    if (!initial_rows.ok()) return initial_rows.status();
    auto table = EmbeddingTable::Create(options_, *std::move(initial_rows));
    if (!table.ok()) return table.status();
    *resource = new TableResource(identity.name, *std::move(table));
    return absl::OkStatus();
  }

  absl::Status Create(OpKernelContext* context,
                      const Identity& identity) const {
    Tensor* handle;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({}), &handle));
    const std::vector<tensorflow::DtypeAndPartialTensorShape> rows = {
        {ValueDtype(options_.type),
         tensorflow::PartialTensorShape({-1, options_.dim})}};
    if (shared_name_.empty()) {
      TableResource* table;
      TF_RETURN_IF_ERROR(NewTable(identity, &table));
      handle->scalar<ResourceHandle>()() =
          ResourceHandle::MakeRefCountingHandle(
              table, context->device()->name(), rows);
      return absl::OkStatus();
    }
    tensorflow::ContainerInfo container;
    TF_RETURN_IF_ERROR(container.Init(context->resource_manager(), def()));
    TF_RETURN_IF_ERROR(FindOrCreate(context, container, identity));
    handle->scalar<ResourceHandle>()() =
        tensorflow::MakeResourceHandle<TableResource>(
            context, container.container(), container.name(), rows);
    return absl::OkStatus();
  }

  absl::Status FindOrCreate(OpKernelContext* context,
                            const tensorflow::ContainerInfo& container,
                            const Identity& identity) const {
    TableResource* found;
    TF_RETURN_IF_ERROR(
        context->resource_manager()->LookupOrCreate<TableResource>(
            container.container(), container.name(), &found,
            [&](TableResource** made) { return NewTable(identity, made); }));
    TablePtr table(found);
    if (table->table()->dim() != options_.dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("Table '", container.name(), "' is there with dim ",
                       table->table()->dim(), "; got dim ", options_.dim,
                       ". Give the new table another shared_name."));
    }
    TF_RETURN_IF_ERROR(CheckKeyDtype(*table, KeyDtype(options_.keys)));
    return CheckValueDtype(*table, ValueDtype(options_.type));
  }

  EmbeddingTable::Options options_;
  Identity identity_;
  std::string initializer_;
  std::vector<double> initializer_args_;
  std::string shared_name_;
};

// Of one number.
template <typename Number>
class TableNumberOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    Tensor* number;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({}), &number));
    number->scalar<int64_t>()() = Number::Of(*table->table());
  }
};

struct TableSize {
  static int64_t Of(const EmbeddingTable& table) { return table.size(); }
};

struct TableSeed {
  static int64_t Of(const EmbeddingTable& table) {
    return static_cast<int64_t>(table.seed());
  }
};

class TableStatsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    Tensor* output;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({4}), &output));
    const TableStats stats = table->table()->stats();
    auto out = output->flat<int64_t>();
    out(0) = stats.size;
    out(1) = stats.capacity;
    out(2) = stats.index_bytes;
    out(3) = stats.row_bytes;
  }
};

class TableSetSlotsOp : public OpKernel {
 public:
  explicit TableSetSlotsOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("owner", &layout_.owner));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("names", &layout_.names));
    OP_REQUIRES_OK(
        construction,
        construction->GetAttr("initial_values", &layout_.initial_values));
    std::vector<int> row_wise;
    OP_REQUIRES_OK(construction, construction->GetAttr("row_wise", &row_wise));
    for (const int slot : row_wise) {
      OP_REQUIRES(construction,
                  slot >= 0 && slot < static_cast<int>(layout_.names.size()),
                  absl::InvalidArgumentError(absl::StrCat(
                      "`row_wise` must name slots in [0, ",
                      layout_.names.size(), "); got ", slot, ".")));
      layout_.row_wise |= SlotSet{1} << slot;
    }
    OP_REQUIRES(construction,
                layout_.names.size() == layout_.initial_values.size() &&
                    layout_.names.size() <= kMaxSlots,
                absl::InvalidArgumentError(absl::StrCat(
                    "`names` and `initial_values` must have the same length, "
                    "at most ",
                    kMaxSlots, "; got ", layout_.names.size(), " and ",
                    layout_.initial_values.size(), ".")));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    OP_REQUIRES_OK(context, CheckTrainable(*table));
    const absl::Status status = table->table()->SetSlots(layout_);
    OP_REQUIRES_OK(context, NameTable(*table, status));
  }

 private:
  SlotLayout layout_;
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>TableCreate").Device(DEVICE_CPU),
                        TableCreateOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableCreateV2").Device(DEVICE_CPU),
                        TableCreateOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableSize").Device(DEVICE_CPU),
                        TableNumberOp<TableSize>);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableSeed").Device(DEVICE_CPU),
                        TableNumberOp<TableSeed>);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableStats").Device(DEVICE_CPU),
                        TableStatsOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableSetSlots").Device(DEVICE_CPU),
                        TableSetSlotsOp);

}  // namespace
}  // namespace tfembed
