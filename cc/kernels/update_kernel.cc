#include "cc/kernels/update_kernel.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cc/kernels/grouped_tables.h"
#include "cc/kernels/tf_executor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

namespace {

// What errors call the tables: as they were told, or as a table that is no
// variable is called itself, or by their places.
absl::Status NameTables(OpKernelContext* context,
                        const std::vector<std::string>& names,
                        std::vector<TableUpdate>* updates) {
  std::vector<GroupedTable> tables;
  TF_RETURN_IF_ERROR(FindTables(context, "tables", &tables));
  for (size_t t = 0; t < updates->size(); ++t) {
    const bool has_own = names[t].empty() && !tables[t].is_static();
    const std::string& name = has_own ? tables[t].table->name() : names[t];
    (*updates)[t].name = name.empty() ? absl::StrCat("table ", t)
                                      : absl::StrCat("table '", name, "'");
  }
  return absl::OkStatus();
}

}  // namespace

UpdateKernel::UpdateKernel(OpKernelConstruction* construction)
    : OpKernel(construction) {
  OP_REQUIRES_OK(construction, Construct(construction));
}

absl::Status UpdateKernel::Construct(OpKernelConstruction* construction) {
  TF_RETURN_IF_ERROR(spec_.Read(construction));
  std::string lines;
  TF_RETURN_IF_ERROR(construction->GetAttr("rules", &lines));
  const std::vector<std::string> texts = absl::StrSplit(lines, '\n');
  if (texts.size() != spec_.dims.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`rules` must have one line for each of the ",
                     spec_.dims.size(), " tables; got ", texts.size(), "."));
  }
  for (const std::string& text : texts) {
    auto rule = UpdateRule::Parse(text);
    if (!rule.ok()) return rule.status();
    rules_.push_back(*std::move(rule));
  }
  TF_RETURN_IF_ERROR(ReadTableNames(construction));
  std::string nonfinite;
  TF_RETURN_IF_ERROR(construction->GetAttr("nonfinite", &nonfinite));
  if (nonfinite == "refuse") nonfinite_ = NonFinite::kRefuse;
  if (nonfinite == "allow") nonfinite_ = NonFinite::kAllow;
  return absl::OkStatus();
}

// Graphs that were made before there were names have none, nor need tables that
// have one themselves: eager TensorFlow would keep a kernel for each.
absl::Status UpdateKernel::ReadTableNames(OpKernelConstruction* construction) {
  TF_RETURN_IF_ERROR(construction->GetAttr("table_names", &table_names_));
  const size_t tables = spec_.dims.size();
  if (table_names_.empty()) table_names_.resize(tables);
  if (table_names_.size() != tables) {
    return absl::InvalidArgumentError(
        absl::StrCat("`table_names` must have one name for each of the ",
                     tables, " tables; got ", table_names_.size(), "."));
  }
  return absl::OkStatus();
}

absl::Status UpdateKernel::Update(OpKernelContext* context,
                                  absl::Span<const FeatureParts> parts) const {
  std::vector<TableUpdate> updates(spec_.dims.size());
  TF_RETURN_IF_ERROR(NameTables(context, table_names_, &updates));
  TF_RETURN_IF_ERROR(ReadLearningRates(context, &updates));
  std::vector<FeatureTensors> tensors;
  TF_RETURN_IF_ERROR(ReadFeatures(spec_, parts, &tensors));
  std::vector<const float*> gradients;
  TF_RETURN_IF_ERROR(ReadGradients(context, spec_, tensors, &gradients));
  Tensor* counts;
  TF_RETURN_IF_ERROR(context->allocate_output(
      0, TensorShape({static_cast<int64_t>(updates.size())}), &counts));
  TfExecutor executor(context);
  LockedSinks sinks;
  absl::Status status = sinks.Open(context, spec_, rules_, &executor, &tensors);
  if (status.ok()) {
    status = Apply(tensors, gradients, &sinks, &executor, &updates);
  }
  sinks.Close();
  TF_RETURN_IF_ERROR(status);
  for (int t = 0; t < updates.size(); ++t) {
    counts->flat<int64_t>()(t) = updates[t].nonfinite_rows;
  }
  return absl::OkStatus();
}

absl::Status UpdateKernel::Apply(absl::Span<const FeatureTensors> tensors,
                                 const std::vector<const float*>& gradients,
                                 LockedSinks* sinks, Executor* executor,
                                 std::vector<TableUpdate>* updates) const {
  std::vector<FeatureInput> features;
  TF_RETURN_IF_ERROR(BuildFeatures(spec_, tensors, sinks->fixed_vocabulary(),
                                   executor, &features));
  for (int t = 0; t < updates->size(); ++t) {
    (*updates)[t].sink = sinks->sink(t);
    (*updates)[t].rule = rules_[t].get();
  }
  for (int f = 0; f < features.size(); ++f) {
    const int t = spec_.features[f].table;
    (*updates)[t].features.push_back(
        {features[f].bags(), gradients[f], spec_.dims[t]});
  }
  return NameBadId(
      GroupedUpdate(absl::MakeSpan(*updates), nonfinite_, executor), spec_,
      features, sinks->num_rows());
}

absl::Status UpdateKernel::ReadLearningRates(
    OpKernelContext* context, std::vector<TableUpdate>* updates) const {
  const Tensor* rates;
  TF_RETURN_IF_ERROR(context->input("learning_rates", &rates));
  const int64_t tables = updates->size();
  if (rates->shape() != TensorShape({tables})) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`learning_rates` must have one entry for each of the ", tables,
        " tables; got shape ", rates->shape().DebugString(), "."));
  }
  for (int64_t t = 0; t < tables; ++t) {
    const float rate = rates->flat<float>()(t);
    const absl::Status status = rules_[t]->CheckLearningRate(rate);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("The learning rate of ",
                                                      (*updates)[t].name, " ",
                                                      status.message()));
    }
    (*updates)[t].learning_rate = rate;
  }
  return absl::OkStatus();
}

}  // namespace tfembed
