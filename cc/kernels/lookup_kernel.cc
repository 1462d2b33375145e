#include "cc/kernels/lookup_kernel.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/table/static_table.h"
#include "cc/kernels/grouped_tables.h"
#include "cc/kernels/kernel_context.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::Var;

// The tables of a lookup, locked for reading while this lives. Variables are
// locked before tables, in lookups and updates alike, and a table that occurs
// twice is locked once.
class LockedSources {
 public:
  // Sets the ids of features that are strings.
  absl::Status Open(OpKernelContext* context, const GroupedSpec& spec,
                    Executor* executor, std::vector<FeatureTensors>* tensors) {
    TF_RETURN_IF_ERROR(FindTables(context, "tables", &tables_));
    std::vector<Var*> variables;
    for (const GroupedTable& table : tables_) {
      if (table.is_static()) variables.push_back(table.variable.get());
    }
    locks_ = std::make_unique<VariableLocks>(std::move(variables),
                                             VariableLocks::Mode::kShared);
    sources_.resize(tables_.size());
    num_rows_.resize(tables_.size(), -1);
    for (int t = 0; t < tables_.size(); ++t) {
      TF_RETURN_IF_ERROR(View(t, spec.dims[t]));
    }
    TF_RETURN_IF_ERROR(
        strings_.Read(spec, tables_, NewKeys::kIgnore, executor, tensors));
    ReadTables();
    return absl::OkStatus();
  }

  const RowSource* source(int t) const { return sources_[t]; }
  const std::vector<int64_t>& num_rows() const { return num_rows_; }

  std::vector<bool> fixed_vocabulary() const {
    std::vector<bool> fixed;
    for (const GroupedTable& table : tables_)
      fixed.push_back(table.is_static());
    return fixed;
  }

 private:
  // Checks table t, and opens it where it is a variable.
  absl::Status View(int t, int64_t dim) {
    const std::string what = absl::StrCat("table ", t);
    if (!tables_[t].is_static()) return CheckDim(*tables_[t].table, what, dim);
    StaticTable view;
    TF_RETURN_IF_ERROR(
        ViewVariable(tables_[t].variable.get(), what, dim, &view));
    NoteRows(tables_[t].variable.get());
    num_rows_[t] = view.num_rows;
    owned_.push_back(ReadStaticTable(view));
    sources_[t] = owned_.back().get();
    return absl::OkStatus();
  }

  // Locks the tables that are no variables, in the order of their addresses.
  void ReadTables() {
    std::map<const EmbeddingTable*, const RowSource*> open;
    for (const GroupedTable& table : tables_) {
      if (!table.is_static()) open[table.table->table()] = nullptr;
    }
    for (auto& [table, source] : open) {
      owned_.push_back(table->Read());
      source = owned_.back().get();
    }
    for (int t = 0; t < tables_.size(); ++t) {
      if (!tables_[t].is_static())
        sources_[t] = open[tables_[t].table->table()];
    }
  }

  // In the order of acquisition: members are destroyed from the last.
  std::vector<GroupedTable> tables_;
  std::unique_ptr<VariableLocks> locks_;
  StringIds strings_;
  std::vector<std::unique_ptr<RowSource>> owned_;
  std::vector<const RowSource*> sources_;
  std::vector<int64_t> num_rows_;
};

}  // namespace

LookupKernel::LookupKernel(OpKernelConstruction* construction,
                           GroupedSpec::Reader read)
    : OpKernel(construction) {
  OP_REQUIRES_OK(construction, (spec_.*read)(construction));
}

absl::Status LookupKernel::LookUp(OpKernelContext* context,
                                  absl::Span<const FeatureParts> parts) const {
  std::vector<FeatureTensors> tensors;
  TF_RETURN_IF_ERROR(ReadFeatures(spec_, parts, &tensors));
  std::vector<PooledFeature> pooled(tensors.size());
  TF_RETURN_IF_ERROR(AllocateActivations(context, tensors, &pooled));
  return Pool(context, &tensors, &pooled);
}

absl::Status LookupKernel::Pool(OpKernelContext* context,
                                std::vector<FeatureTensors>* tensors,
                                std::vector<PooledFeature>* pooled) const {
  TfExecutor executor(context);
  LockedSources sources;
  TF_RETURN_IF_ERROR(sources.Open(context, spec_, &executor, tensors));
  for (size_t f = 0; f < tensors->size(); ++f) {
    (*pooled)[f].source = sources.source(spec_.features[f].table);
  }
  const auto pool = [&](const std::vector<bool>& drops_negative) {
    std::vector<FeatureInput> features;
    TF_RETURN_IF_ERROR(
        BuildFeatures(spec_, *tensors, drops_negative, &executor, &features));
    for (size_t f = 0; f < features.size(); ++f) {
      (*pooled)[f].bags = features[f].bags();
    }
    return NameBadId(PooledLookup(*pooled, &executor), spec_, features,
                     sources.num_rows());
  };
  if (!had_negative_.load(std::memory_order_relaxed)) {
    const std::vector<bool> nowhere(spec_.dims.size(), false);
    if (pool(nowhere).ok()) return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(pool(sources.fixed_vocabulary()));
  had_negative_ = true;
  return absl::OkStatus();
}

absl::Status LookupKernel::AllocateActivations(
    OpKernelContext* context, const std::vector<FeatureTensors>& tensors,
    std::vector<PooledFeature>* pooled) const {
  int first = 0, end = 0;
  TF_RETURN_IF_ERROR(
      context->op_kernel().OutputRange("activations", &first, &end));
  for (int f = 0; f < tensors.size(); ++f) {
    TensorShape shape;
    TF_RETURN_IF_ERROR(
        spec_.ActivationsShape(f, tensors[f].batch_size, &shape));
    Tensor* output;
    TF_RETURN_IF_ERROR(AllocateRows(context, first + f, shape, &output));
    (*pooled)[f].activations = output->flat<float>().data();
    (*pooled)[f].stride = spec_.dims[spec_.features[f].table];
  }
  return absl::OkStatus();
}

}  // namespace tfembed
