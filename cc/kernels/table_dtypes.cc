#include "cc/kernels/table_dtypes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::DataTypeString;

constexpr std::pair<KeyKind, DataType> kKeys[] = {
    {KeyKind::kInt64, tensorflow::DT_INT64},
    {KeyKind::kInt32, tensorflow::DT_INT32},
    {KeyKind::kString, tensorflow::DT_STRING},
};

constexpr std::pair<ElementKind, DataType> kValues[] = {
    {ElementKind::kFloat32, tensorflow::DT_FLOAT},
    {ElementKind::kFloat16, tensorflow::DT_HALF},
    {ElementKind::kBfloat16, tensorflow::DT_BFLOAT16},
    {ElementKind::kFloat64, tensorflow::DT_DOUBLE},
    {ElementKind::kInt8, tensorflow::DT_INT8},
    {ElementKind::kInt32, tensorflow::DT_INT32},
    {ElementKind::kInt64, tensorflow::DT_INT64},
    {ElementKind::kBool, tensorflow::DT_BOOL},
};

absl::Status WrongDtype(const TableResource& table, absl::string_view what,
                        DataType wanted, DataType given) {
  if (wanted == given) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Table '", table.name(), "' has ", what, " of dtype ",
      DataTypeString(wanted), "; got ", DataTypeString(given), "."));
}

}  // namespace

DataType KeyDtype(KeyKind keys) {
  for (const auto& [kind, dtype] : kKeys) {
    if (kind == keys) return dtype;
  }
  return tensorflow::DT_INVALID;
}

DataType ValueDtype(ValueType values) {
  for (const auto& [kind, dtype] : kValues) {
    if (kind == values.kind()) return dtype;
  }
  return tensorflow::DT_INVALID;
}

absl::Status FindKeyKind(DataType dtype, KeyKind* keys) {
  for (const auto& [kind, known] : kKeys) {
    if (known != dtype) continue;
    *keys = kind;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("No table has keys of dtype ", DataTypeString(dtype), "."));
}

absl::Status FindValueType(DataType dtype, ValueType* values) {
  for (const auto& [kind, known] : kValues) {
    if (known != dtype) continue;
    *values = kind;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "No table has values of dtype ", DataTypeString(dtype), "."));
}

absl::Status CheckKeyDtype(const TableResource& table, DataType dtype) {
  return WrongDtype(table, "keys", KeyDtype(table.table()->key_kind()), dtype);
}

absl::Status CheckTrainable(const TableResource& table) {
  if (table.table()->type().is_trainable()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Table '", table.name(), "' has rows of ", table.table()->type().name(),
      "; only those of float32, float16 or bfloat16 can be "
      "trained. Read and upsert them instead."));
}

absl::Status CheckValueDtype(const TableResource& table, DataType dtype) {
  return WrongDtype(table, "values", ValueDtype(table.table()->type()), dtype);
}

absl::Status CheckRows(const TableResource& table,
                       const tensorflow::Tensor& keys, int64_t width,
                       const tensorflow::Tensor& rows, const char* name) {
  tensorflow::TensorShape expected = keys.shape();
  TF_RETURN_IF_ERROR(expected.AddDimWithStatus(width));
  if (rows.shape() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Expected shape ", expected.DebugString(), " for ", name, ", got ",
      rows.shape().DebugString(), ", in table '", table.name(), "'"));
}

}  // namespace tfembed
