// Kernels of the ops on one shard of a table: rows by key, keys, what policies
// keep, and rows as update rules outside of the core move them.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cc/core/rows/initial_rows.h"
#include "cc/core/table/embedding_table.h"
#include "cc/kernels/kernel_context.h"
#include "cc/kernels/key_batch.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

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

// Writes one number of a table.
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

class TableDropSlotsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const absl::Status status = table->table()->DropSlots();
    OP_REQUIRES_OK(context, NameTable(*table, status));
  }
};

TFEMBED_KERNEL(TableCreate, TableCreateOp);
TFEMBED_KERNEL(TableCreateV2, TableCreateOp);
TFEMBED_KERNEL(TableSize, TableNumberOp<TableSize>);
TFEMBED_KERNEL(TableSeed, TableNumberOp<TableSeed>);
TFEMBED_KERNEL(TableStats, TableStatsOp);
TFEMBED_KERNEL(TableSetSlots, TableSetSlotsOp);
TFEMBED_KERNEL(TableDropSlots, TableDropSlotsOp);

class TableLookupOp : public OpKernel {
 public:
  explicit TableLookupOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("dim", &dim_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    OP_REQUIRES(context, table->table()->dim() == dim_,
                absl::InvalidArgumentError(absl::StrCat(
                    "The rows of table '", table->name(), "' have dim ",
                    table->table()->dim(), "; got dim ", dim_, ".")));
    OP_REQUIRES_OK(context,
                   CheckValueDtype(*table, context->expected_output_dtype(0)));
    TfExecutor executor(context);
    KeysToFind keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1)));
    const TensorShape& key_shape = context->input(1).shape();
    TensorShape shape = key_shape;
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(dim_));
    Tensor *values, *exists;
    OP_REQUIRES_OK(context, AllocateRows(context, 0, shape, &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, key_shape, &exists));
    table->table()->LookupFrom(&keys, values->data(),
                               exists->flat<bool>().data(), &executor);
  }

 private:
  int64_t dim_ = 0;
};

class TableUpsertOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &values = context->input(2);
    OP_REQUIRES_OK(context, CheckValueDtype(*table, values.dtype()));
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, table->table()->dim(), values));
    TfExecutor executor(context);
    KeyBatch batch;
    OP_REQUIRES_OK(context, batch.Read(*table, keys, NewKeys::kAdd, &executor));
    OP_REQUIRES_OK(context, table->table()->Upsert(batch.span(), values.data(),
                                                   &executor));
    batch.ForgetStrays(*table->table());
  }
};

class TableAccumOp : public OpKernel {
 public:
  explicit TableAccumOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES(construction, construction->num_inputs() <= kOldValues + 1,
                absl::InvalidArgumentError("At most one tensor of old_values"));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &values = context->input(2),
                 &exists = context->input(3);
    OP_REQUIRES_OK(context, CheckValueDtype(*table, values.dtype()));
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, table->table()->dim(), values));
    OP_REQUIRES(
        context, exists.shape() == keys.shape(),
        absl::InvalidArgumentError(absl::StrCat(
            "Expected shape ", keys.shape().DebugString(), " for exists, got ",
            exists.shape().DebugString(), ", in table '", table->name(), "'")));
    const void* old_values = nullptr;
    if (context->num_inputs() > kOldValues) {
      const Tensor& old = context->input(kOldValues);
      OP_REQUIRES_OK(context, CheckRows(*table, keys, table->table()->dim(),
                                        old, "old_values"));
      old_values = old.data();
    }
    TfExecutor executor(context);
    KeyBatch batch;
    OP_REQUIRES_OK(context, batch.Read(*table, keys, NewKeys::kAdd, &executor));
    OP_REQUIRES_OK(
        context, table->table()->Accum(batch.span(), values.data(), old_values,
                                       exists.flat<bool>().data(), &executor));
    batch.ForgetStrays(*table->table());
  }

 private:
  static constexpr int kOldValues = 4;  // An input that may be left out.
};

// Takes keys out of a table by `Method`, a member function of EmbeddingTable.
template <void (EmbeddingTable::*Method)(absl::Span<const int64_t>, Executor*)>
class TableKeysOutOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    TfExecutor executor(context);
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1),
                                      NewKeys::kIgnore, &executor));
    (table->table()->*Method)(keys.span(), &executor);
    keys.ForgetStrings(*table->table());
  }
};

class TableImportOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &rows = context->input(2);
    OP_REQUIRES(context, keys.dims() == 1,
                absl::InvalidArgumentError(
                    absl::StrCat("`keys` must be a vector; got shape ",
                                 keys.shape().DebugString(), ".")));
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, table->table()->full_width(), rows));
    TfExecutor executor(context);
    KeyBatch batch;
    OP_REQUIRES_OK(context, batch.Read(*table, keys, NewKeys::kAdd, &executor));
    OP_REQUIRES_OK(
        context, table->table()->Import(batch.span(), rows.dim_size(1),
                                        rows.flat<float>().data(), &executor));
    batch.ForgetStrays(*table->table());
  }
};

TFEMBED_KERNEL(TableLookup, TableLookupOp);
TFEMBED_KERNEL(TableUpsert, TableUpsertOp);
TFEMBED_KERNEL(TableAccum, TableAccumOp);
TFEMBED_KERNEL(TableRemove, TableKeysOutOp<&EmbeddingTable::Remove>);
TFEMBED_KERNEL(TableImport, TableImportOp);

class TableKeysOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTableOfKeys(context, 0, &table));
    OP_REQUIRES_OK(context, Export(context, *table->table()));
  }

 private:
  static absl::Status Export(OpKernelContext* context,
                             const EmbeddingTable& table) {
    KeyOutput keys({&table});
    const auto allocate = [&](int64_t n) {
      return keys.Allocate(context, 0, {n});
    };
    TfExecutor executor(context);
    TF_RETURN_IF_ERROR(table.ExportKeys(allocate, &executor));
    keys.Finish();
    return absl::OkStatus();
  }
};

class TableContainsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    TfExecutor executor(context);
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1),
                                      NewKeys::kIgnore, &executor));
    Tensor* exists;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, context->input(1).shape(), &exists));
    table->table()->Contains(keys.span(), exists->flat<bool>().data(),
                             &executor);
  }
};

TFEMBED_KERNEL(TableKeys, TableKeysOp);
TFEMBED_KERNEL(TableContains, TableContainsOp);

class TableWorthOp : public OpKernel {
 public:
  explicit TableWorthOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("policy", &policy_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTableOfKeys(context, 0, &table));
    KeyOutput keys({table->table()});
    const auto allocate =
        [&](int64_t n) -> absl::StatusOr<EmbeddingTable::WorthBuffers> {
      Tensor* worth;
      TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({n}), &worth));
      auto to = keys.Allocate(context, 0, {n});
      if (!to.ok()) return to.status();
      return EmbeddingTable::WorthBuffers{*to, worth->flat<double>().data()};
    };
    TfExecutor executor(context);
    const absl::Status status =
        table->table()->ExportWorth(policy_, allocate, &executor);
    OP_REQUIRES_OK(context, NameTable(*table, status));
    keys.Finish();
  }

 private:
  std::string policy_;
};

class TableImportWaitingOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor& seen = context->input(2);
    OP_REQUIRES(context,
                seen.dims() == 1 && seen.shape() == context->input(1).shape(),
                absl::InvalidArgumentError(absl::StrCat(
                    "`keys` and `seen` must be vectors of one length; got ",
                    context->input(1).shape().DebugString(), " and ",
                    seen.shape().DebugString(), ".")));
    TfExecutor executor(context);
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1), NewKeys::kAdd,
                                      &executor));
    const absl::Status status = table->table()->ImportWaiting(
        keys.span(),
        {seen.flat<int32_t>().data(), static_cast<size_t>(seen.NumElements())});
    keys.ForgetStrays(*table->table());
    OP_REQUIRES_OK(context, NameTable(*table, status));
  }
};

class TableUseOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const TableUse use = table->table()->use();
    const int64_t counts[] = {use.hits,         use.misses,     use.admitted,
                              use.refused,      use.evicted,    use.nan_rows,
                              use.value_bytes,  use.slot_bytes, use.meta_bytes,
                              use.policy_bytes, use.places,     use.probes,
                              use.longest_probe};
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({std::size(counts)}), &output));
    std::copy(std::begin(counts), std::end(counts),
              output->flat<int64_t>().data());
  }
};

TFEMBED_KERNEL(TableEvict, TableKeysOutOp<&EmbeddingTable::Evict>);
TFEMBED_KERNEL(TableWorth, TableWorthOp);
TFEMBED_KERNEL(TableImportWaiting, TableImportWaitingOp);
TFEMBED_KERNEL(TableUse, TableUseOp);

// The rule whose slots a call is made for.
absl::Status ReadRule(OpKernelConstruction* construction, SlotLayout* rule) {
  TF_RETURN_IF_ERROR(construction->GetAttr("owner", &rule->owner));
  return construction->GetAttr("slot_names", &rule->names);
}

class TableLookupTrainedOp : public OpKernel {
 public:
  explicit TableLookupTrainedOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("width", &width_));
    OP_REQUIRES_OK(construction, ReadRule(construction, &rule_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    OP_REQUIRES_OK(context, CheckTrainable(*table));
    TfExecutor executor(context);
    KeyBatch keys;
    OP_REQUIRES_OK(context, keys.Read(*table, context->input(1),
                                      NewKeys::kIgnore, &executor));
    TensorShape shape = context->input(1).shape();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(width_));
    Tensor* rows;
    OP_REQUIRES_OK(context, AllocateRows(context, 0, shape, &rows));
    const absl::Status status = table->table()->LookupTrained(
        keys.span(), {width_, &rule_}, rows->flat<float>().data(), &executor);
    OP_REQUIRES_OK(context, NameTable(*table, status));
  }

 private:
  int64_t width_ = 0;
  SlotLayout rule_;
};

class TableWriteTrainedOp : public OpKernel {
 public:
  explicit TableWriteTrainedOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("add", &add_));
    OP_REQUIRES_OK(construction, ReadRule(construction, &rule_));
  }

  void Compute(OpKernelContext* context) override {
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const Tensor &keys = context->input(1), &rows = context->input(2);
    const int64_t width = table->table()->trained_width();
    OP_REQUIRES_OK(context,
                   CheckRows(*table, keys, width, rows, "value and slots"));
    OP_REQUIRES_OK(context, CheckTrainable(*table));
    TfExecutor executor(context);
    KeyBatch batch;
    OP_REQUIRES_OK(context, batch.Read(*table, keys, NewKeys::kAdd, &executor));
    const absl::Status status = table->table()->WriteTrained(
        batch.span(), {width, &rule_}, rows.flat<float>().data(), add_,
        &executor);
    batch.ForgetStrays(*table->table());
    OP_REQUIRES_OK(context, NameTable(*table, status));
  }

 private:
  bool add_ = false;
  SlotLayout rule_;
};

TFEMBED_KERNEL(TableLookupTrained, TableLookupTrainedOp);
TFEMBED_KERNEL(TableWriteTrained, TableWriteTrainedOp);

}  // namespace

}  // namespace tfembed
