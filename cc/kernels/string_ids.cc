#include "cc/kernels/string_ids.h"

#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "cc/core/support/hash_bytes.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

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
