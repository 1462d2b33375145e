#include "cc/kernels/grouped_tables.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/core/support/hash_bytes.h"
#include "cc/core/support/page_collapser.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/type_index.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::OpInputList;
using ::tensorflow::OpKernelContext;
using ::tensorflow::ResourceHandle;
using ::tensorflow::Tensor;
using ::tensorflow::TypeIndex;
using ::tensorflow::Var;

// The handle in a scalar of the list input `name`, and whether it is a
// variable's.
absl::Status ReadHandle(absl::string_view name, int i, const Tensor& tensor,
                        const ResourceHandle** handle, bool* is_variable) {
  if (tensor.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be scalars; entry ", i, " has shape ",
                     tensor.shape().DebugString(), "."));
  }
  *handle = &tensor.scalar<ResourceHandle>()();
  *is_variable = (*handle)->hash_code() == TypeIndex::Make<Var>().hash_code();
  const bool is_table =
      (*handle)->hash_code() == TypeIndex::Make<TableResource>().hash_code();
  if (*is_variable || is_table) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`", name, "` must be handles of tf.Variables or tfembed tables; entry ",
      i, " is a ", (*handle)->maybe_type_name(), "."));
}

absl::Status CheckKeys(const FeatureSpec& feature,
                       const FeatureTensors& tensors,
                       const GroupedTable& table) {
  const bool takes_strings =
      !table.is_static() && table.table->table()->strings() != nullptr;
  if (takes_strings == tensors.are_strings) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "In ", feature.name, ": the ids are ",
      tensors.are_strings ? "strings" : "integers", "; the keys of ",
      table.is_static() ? "its table, a variable,"
                        : absl::StrCat("table '", table.table->name(), "'"),
      " are ", takes_strings ? "strings." : "integers."));
}

struct HashOfBytes {
  size_t operator()(absl::string_view text) const { return HashBytes(text); }
};

}  // namespace

absl::Status ReadFixedVocabulary(OpKernelContext* context,
                                 std::vector<bool>* fixed_vocabulary) {
  OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list("tables", &list));
  for (int t = 0; t < list.size(); ++t) {
    const ResourceHandle* handle;
    bool is_variable;
    TF_RETURN_IF_ERROR(ReadHandle("tables", t, list[t], &handle, &is_variable));
    fixed_vocabulary->push_back(is_variable);
  }
  return absl::OkStatus();
}

absl::Status FindTables(OpKernelContext* context, absl::string_view name,
                        std::vector<GroupedTable>* tables) {
  OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list(name, &list));
  for (int i = 0; i < list.size(); ++i) {
    const ResourceHandle* handle;
    bool is_variable;
    TF_RETURN_IF_ERROR(ReadHandle(name, i, list[i], &handle, &is_variable));
    GroupedTable& table = tables->emplace_back();
    TF_RETURN_IF_ERROR(is_variable
                           ? LookupResource(context, *handle, &table.variable)
                           : LookupResource(context, *handle, &table.table));
  }
  return absl::OkStatus();
}

VariableLocks::VariableLocks(std::vector<Var*> variables, Mode mode)
    : variables_(std::move(variables)), mode_(mode) {
  std::sort(variables_.begin(), variables_.end(),
            [](Var* a, Var* b) { return a->mu() < b->mu(); });
  variables_.erase(std::unique(variables_.begin(), variables_.end()),
                   variables_.end());
  for (Var* variable : variables_) {
    if (mode_ == Mode::kShared) {
      variable->mu()->lock_shared();
    } else {
      variable->mu()->lock();
    }
  }
}

VariableLocks::~VariableLocks() {
  for (auto it = variables_.rbegin(); it != variables_.rend(); ++it) {
    if (mode_ == Mode::kShared) {
      (*it)->mu()->unlock_shared();
    } else {
      (*it)->mu()->unlock();
    }
  }
}

absl::Status ViewVariable(Var* variable, absl::string_view what, int64_t dim,
                          StaticTable* view) {
  if (!variable->is_initialized) {
    return absl::FailedPreconditionError(
        absl::StrCat("The variable of ", what, " is not initialized."));
  }
  Tensor* tensor = variable->tensor();
  if (tensor->dtype() != tensorflow::DT_FLOAT || tensor->dims() != 2 ||
      tensor->dim_size(1) != dim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The variable of ", what, " must be float [vocabulary,", dim, "]; got ",
        tensorflow::DataTypeString(tensor->dtype()), " ",
        tensor->shape().DebugString(), "."));
  }
  view->name = std::string(what);
  view->values = tensor->flat<float>().data();
  view->num_rows = tensor->dim_size(0);
  view->dim = dim;
  return absl::OkStatus();
}

void NoteRows(Var* variable) {
  const Tensor& rows = *variable->tensor();
  PageCollapser::Global().Note(variable, rows.data(), rows.TotalBytes());
}

absl::Status CheckDim(const TableResource& table, absl::string_view what,
                      int64_t dim) {
  if (!table.table()->type().is_trainable()) {
    return absl::InvalidArgumentError(
        absl::StrCat("The rows of ", what, ", '", table.name(), "', are ",
                     table.table()->type().name(),
                     "; they must be float32, float16 or bfloat16 here."));
  }
  if (table.table()->dim() == dim) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("The rows of ", what, ", '", table.name(), "', have dim ",
                   table.table()->dim(), "; got dim ", dim, "."));
}

absl::Status NameBadId(const absl::Status& status, const GroupedSpec& spec,
                       absl::Span<const FeatureInput> features,
                       const std::vector<int64_t>& num_rows) {
  if (status.ok()) return status;
  for (int f = 0; f < features.size(); ++f) {
    const int64_t limit = num_rows[spec.features[f].table];
    const IdBags& bags = features[f].bags();
    if (limit < 0) continue;
    for (int64_t i = 0; i < bags.num_ids(); ++i) {
      if (bags.ids[i] >= 0 && bags.ids[i] < limit) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("In ", spec.features[f].name, ": id ", bags.ids[i],
                       " is not in [0, ", limit, "), the rows of its table."));
    }
  }
  return status;
}

absl::Status StringIds::Read(const GroupedSpec& spec,
                             absl::Span<const GroupedTable> tables,
                             NewKeys new_keys, Executor* executor,
                             std::vector<FeatureTensors>* tensors) {
  for (size_t f = 0; f < tensors->size(); ++f) {
    const FeatureSpec& feature = spec.features[f];
    TF_RETURN_IF_ERROR(
        CheckKeys(feature, (*tensors)[f], tables[feature.table]));
    if (!(*tensors)[f].are_strings) continue;
    const EmbeddingTable* table = tables[feature.table].table->table();
    if (std::find(used_.begin(), used_.end(), table) == used_.end()) {
      used_.push_back(table);
    }
  }
  for (const EmbeddingTable* table : used_) {
    users_.emplace_back(table->strings()->users());
  }
  for (size_t f = 0; f < tensors->size(); ++f) {
    FeatureTensors& one = (*tensors)[f];
    if (!one.are_strings) continue;
    StringKeys* const strings =
        tables[spec.features[f].table].table->table()->strings();
    if (new_keys == NewKeys::kAdd) {
      TF_RETURN_IF_ERROR(
          strings->Add(one.strings, one.string_ids.data(), executor));
    } else {
      strings->Find(one.strings, one.string_ids.data(), executor);
    }
  }
  return absl::OkStatus();
}

void StringIds::Finish() {
  users_.clear();
  for (const EmbeddingTable* table : used_) ForgetStrays(*table);
  used_.clear();
}

absl::Status BatchStrings::Number(const GroupedSpec& spec,
                                  std::vector<FeatureTensors>* tensors) {
  tables_.resize(spec.dims.size());
  std::vector<std::unordered_map<absl::string_view, int64_t, HashOfBytes>>
      numbers(tables_.size());
  for (size_t f = 0; f < tensors->size(); ++f) {
    const FeatureSpec& feature = spec.features[f];
    FeatureTensors& one = (*tensors)[f];
    Table& table = tables_[feature.table];
    if (table.has_features && table.are_strings != one.are_strings) {
      return absl::InvalidArgumentError(
          absl::StrCat("In ", feature.name, ": the ids are ",
                       one.are_strings ? "strings" : "integers",
                       "; those of another feature of its table are not."));
    }
    table.has_features = true;
    table.are_strings = one.are_strings;
    for (size_t i = 0; i < one.strings.size(); ++i) {
      const auto [found, is_new] =
          numbers[feature.table].emplace(one.strings[i], table.strings.size());
      if (is_new) table.strings.push_back(one.strings[i]);
      one.string_ids[i] = found->second;
    }
  }
  return absl::OkStatus();
}

}  // namespace tfembed
