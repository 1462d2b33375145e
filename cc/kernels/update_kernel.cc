#include "cc/kernels/update_kernel.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cc/kernels/grouped_tables.h"
#include "cc/kernels/kernel_context.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::OpKernelContext;
using ::tensorflow::ResourceBase;
using ::tensorflow::Tensor;
using ::tensorflow::Var;

// Makes sure that nobody else reads the variable's memory, now and later, as
// TensorFlow's own sparse updates do: whoever read it before keeps the old
// values, and later reads copy. The caller holds the exclusive lock.
absl::Status Unshare(OpKernelContext* context, Var* variable) {
  if (variable->copy_on_read_mode.load()) return absl::OkStatus();
  Tensor* tensor = variable->tensor();
  if (!tensor->RefCountIsOne()) {
    Tensor copy;
    TF_RETURN_IF_ERROR(
        context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
    std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
    *tensor = copy;
  }
  variable->copy_on_read_mode.store(true);
  return absl::OkStatus();
}

// The variable's rows, to be written.
absl::Status OpenRows(OpKernelContext* context, Var* variable, float** rows) {
  TF_RETURN_IF_ERROR(Unshare(context, variable));
  NoteRows(variable);
  *rows = variable->tensor()->flat<float>().data();
  return absl::OkStatus();
}

// The slots of a hash table must be those that the rule expects.
absl::Status CheckSlots(const TableResource& table, const UpdateRule& rule) {
  const SlotLayout layout = table.table()->slots();
  const bool same = layout.names == rule.slot_names() &&
                    layout.row_wise == rule.row_wise_slots() &&
                    (layout.names.empty() || layout.owner == rule.name());
  if (same) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "Table '", table.name(), "' has ",
      layout.names.empty() ? "no slots"
                           : absl::StrCat("the slots of ", layout.owner),
      "; rule ", rule.name(), " needs [",
      absl::StrJoin(rule.slot_names(), ", "),
      "]. Attach its optimizer to the table before the first update."));
}

}  // namespace

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::TensorShape;

namespace {

// Sets the tables' names for errors: the given name; without one, the own name
// of a table that is no variable, or the table's index.
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

UpdateKernel::UpdateKernel(OpKernelConstruction* construction,
                           GroupedSpec::Reader read)
    : OpKernel(construction) {
  OP_REQUIRES_OK(construction, Construct(construction, read));
}

absl::Status UpdateKernel::Construct(OpKernelConstruction* construction,
                                     GroupedSpec::Reader read) {
  TF_RETURN_IF_ERROR((spec_.*read)(construction));
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
  TF_RETURN_IF_ERROR(ReadNormLimits(construction));
  std::string nonfinite;
  TF_RETURN_IF_ERROR(construction->GetAttr("nonfinite", &nonfinite));
  if (nonfinite == "refuse") nonfinite_ = NonFinite::kRefuse;
  if (nonfinite == "allow") nonfinite_ = NonFinite::kAllow;
  return absl::OkStatus();
}

// Reads one name for each table, or none where every table has a name itself:
// eager TensorFlow would keep a kernel for every list of names.
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

// Reads one limit and group for each table, or none: 0 is no limit.
absl::Status UpdateKernel::ReadNormLimits(OpKernelConstruction* construction) {
  std::vector<float> limits;
  std::vector<int64_t> groups;
  TF_RETURN_IF_ERROR(construction->GetAttr("norm_limits", &limits));
  TF_RETURN_IF_ERROR(construction->GetAttr("norm_groups", &groups));
  const size_t tables = limits.empty() ? 0 : spec_.dims.size();
  if (limits.size() != tables || groups.size() != tables) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`norm_limits` and `norm_groups` must have one entry for each of the ",
        spec_.dims.size(), " tables, or both none; got ", limits.size(),
        " and ", groups.size(), "."));
  }
  std::map<int64_t, NormLimit> of_groups;
  for (size_t t = 0; t < limits.size(); ++t) {
    if (limits[t] == 0) continue;
    NormLimit& limit = of_groups[groups[t]];
    const bool is_first = limit.tables.empty();
    if (!(limits[t] > 0) || !(is_first || limit.most == limits[t])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`norm_limits` must be above 0, or 0 for none, and the same in a "
          "group; got ",
          limits[t], " for table ", t, "."));
    }
    if (!rules_[t]->accumulate()) {
      return absl::InvalidArgumentError(
          absl::StrCat("Table ", t,
                       " has a norm limit, for which its rule must sum the "
                       "gradients of an id; rule ",
                       rules_[t]->name(), " sums none."));
    }
    limit.most = limits[t];
    limit.tables.push_back(t);
  }
  for (auto& [group, limit] : of_groups) {
    norm_limits_.push_back(std::move(limit));
  }
  return absl::OkStatus();
}

absl::Status UpdateKernel::Update(OpKernelContext* context,
                                  absl::Span<const FeatureParts> parts) const {
  std::vector<FeatureTensors> tensors;
  TF_RETURN_IF_ERROR(ReadFeatures(spec_, parts, &tensors));
  std::vector<const float*> gradients;
  TF_RETURN_IF_ERROR(ReadGradients(context, spec_, tensors, &gradients));
  return Train(context, &tensors, gradients);
}

absl::Status UpdateKernel::Train(
    OpKernelContext* context, std::vector<FeatureTensors>* tensors,
    const std::vector<const float*>& gradients) const {
  std::vector<TableUpdate> updates(spec_.dims.size());
  TF_RETURN_IF_ERROR(NameTables(context, table_names_, &updates));
  TF_RETURN_IF_ERROR(ReadLearningRates(context, &updates));
  Tensor* counts;
  TF_RETURN_IF_ERROR(context->allocate_output(
      0, TensorShape({static_cast<int64_t>(updates.size())}), &counts));
  TfExecutor executor(context);
  LockedSinks sinks;
  absl::Status status = sinks.Open(context, spec_, rules_, &executor, tensors);
  if (status.ok()) {
    status = Apply(*tensors, gradients, &sinks, &executor, &updates);
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
  return NameBadId(GroupedUpdate(absl::MakeSpan(*updates), nonfinite_, executor,
                                 norm_limits_),
                   spec_, features, sinks->num_rows());
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

absl::Status LockedSinks::Open(OpKernelContext* context,
                               const GroupedSpec& spec,
                               const UpdateRules& rules, Executor* executor,
                               std::vector<FeatureTensors>* tensors) {
  TF_RETURN_IF_ERROR(FindTables(context, "tables", &tables_));
  TF_RETURN_IF_ERROR(FindTables(context, "slots", &slots_));
  TF_RETURN_IF_ERROR(CheckNumSlots(rules));
  TF_RETURN_IF_ERROR(Lock());
  views_.resize(tables_.size());
  num_rows_.resize(tables_.size(), -1);
  drops_.resize(tables_.size());
  int slot = 0;
  for (int t = 0; t < tables_.size(); ++t) {
    TF_RETURN_IF_ERROR(Check(t, spec.dims[t], *rules[t], &slot));
  }
  TF_RETURN_IF_ERROR(
      strings_.Read(spec, tables_, NewKeys::kAdd, executor, tensors));
  return Write(context, rules);
}

void LockedSinks::Close() {
  sinks_.clear();
  locks_.reset();
  strings_.Finish();
}

std::vector<bool> LockedSinks::fixed_vocabulary() const {
  std::vector<bool> fixed;
  for (const GroupedTable& table : tables_) fixed.push_back(table.is_static());
  return fixed;
}

absl::Status LockedSinks::CheckNumSlots(const UpdateRules& rules) const {
  size_t expected = 0;
  for (int t = 0; t < tables_.size(); ++t) {
    if (tables_[t].is_static()) expected += rules[t]->slot_names().size();
  }
  if (slots_.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("The rules of the tables that are variables have ", expected,
                   " slots in all; got ", slots_.size(), " slot variables."));
}

// Each variable and table may occur once: parts are written side by side.
absl::Status LockedSinks::Lock() {
  std::set<const ResourceBase*> seen;
  std::vector<Var*> variables;
  for (const auto* list : {&tables_, &slots_}) {
    for (const GroupedTable& table : *list) {
      const ResourceBase* resource = table.variable.get();
      if (!table.is_static()) resource = table.table.get();
      if (!seen.insert(resource).second) {
        return absl::InvalidArgumentError(
            "A table or slot variable was given twice in one update; list "
            "each once and let all its features name that entry.");
      }
      if (table.is_static()) variables.push_back(table.variable.get());
    }
  }
  locks_ = std::make_unique<VariableLocks>(std::move(variables),
                                           VariableLocks::Mode::kExclusive);
  return absl::OkStatus();
}

absl::Status LockedSinks::Check(int t, int64_t dim, const UpdateRule& rule,
                                int* slot) {
  const std::string what = absl::StrCat("table ", t);
  if (!tables_[t].is_static()) {
    TF_RETURN_IF_ERROR(CheckDim(*tables_[t].table, what, dim));
    drops_[t] = tables_[t].table->table()->drops();
    return CheckSlots(*tables_[t].table, rule);
  }
  TF_RETURN_IF_ERROR(
      ViewVariable(tables_[t].variable.get(), what, dim, &views_[t]));
  num_rows_[t] = views_[t].num_rows;
  for (size_t s = 0; s < rule.slot_names().size(); ++s) {
    TF_RETURN_IF_ERROR(
        CheckSlotVariable(t, rule.slot_names()[s],
                          SlotWidth(rule.row_wise_slots(), s, dim), (*slot)++));
  }
  return absl::OkStatus();
}

absl::Status LockedSinks::CheckSlotVariable(int t, const std::string& name,
                                            int64_t width, int slot) {
  const std::string what = absl::StrCat("slot ", name, " of table ", t);
  if (!slots_[slot].is_static()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " must be a tf.Variable, as the table is."));
  }
  StaticTable view;
  TF_RETURN_IF_ERROR(
      ViewVariable(slots_[slot].variable.get(), what, width, &view));
  if (view.num_rows == num_rows_[t]) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " must have the table's ", num_rows_[t], " rows; got ",
                   view.num_rows, "."));
}

absl::Status LockedSinks::Write(OpKernelContext* context,
                                const UpdateRules& rules) {
  int slot = 0;
  for (int t = 0; t < tables_.size(); ++t) {
    if (!tables_[t].is_static()) {
      sinks_.push_back(tables_[t].table->table()->Write());
      if (tables_[t].table->table()->drops() != drops_[t]) {
        TF_RETURN_IF_ERROR(CheckSlots(*tables_[t].table, *rules[t]));
      }
      continue;
    }
    float* rows;
    TF_RETURN_IF_ERROR(OpenRows(context, tables_[t].variable.get(), &rows));
    views_[t].values = rows;
    views_[t].num_slots = rules[t]->slot_names().size();
    views_[t].row_wise = rules[t]->row_wise_slots();
    for (int s = 0; s < views_[t].num_slots; ++s) {
      TF_RETURN_IF_ERROR(
          OpenRows(context, slots_[slot++].variable.get(), &rows));
      views_[t].slots[s] = rows;
    }
    sinks_.push_back(WriteStaticTable(views_[t]));
  }
  return absl::OkStatus();
}

}  // namespace tfembed
