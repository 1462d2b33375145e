#include "cc/kernels/key_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

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

using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

namespace {

// Says which keys the table has or counts.
StringKeys::InUse KeysOf(const EmbeddingTable& table) {
  return [&table](absl::Span<const int64_t> keys, bool* used) {
    table.IsKnown(keys, used);
  };
}

}  // namespace

absl::Status KeyBatch::Read(const TableResource& table, const Tensor& keys,
                            NewKeys new_keys, Executor* executor) {
  TF_RETURN_IF_ERROR(CheckKeyDtype(table, keys.dtype()));
  const auto n = static_cast<size_t>(keys.NumElements());
  if (keys.dtype() == tensorflow::DT_INT64) {
    span_ = {keys.flat<int64_t>().data(), n};
    return absl::OkStatus();
  }
  if (keys.dtype() == tensorflow::DT_STRING) {
    return ReadStrings(*table.table(), ViewsOf(keys, executor), new_keys,
                       executor);
  }
  const int32_t* narrow = keys.flat<int32_t>().data();
  own_.assign(narrow, narrow + n);
  span_ = own_;
  return absl::OkStatus();
}

absl::Status KeysToFind::Read(const TableResource& table, const Tensor& keys) {
  TF_RETURN_IF_ERROR(CheckKeyDtype(table, keys.dtype()));
  keys_ = &keys;
  names_ = table.table()->strings();
  if (names_ != nullptr) {
    users_ = std::shared_lock<SharedMutex>(names_->users());
  }
  return absl::OkStatus();
}

void KeysToFind::Begin() {
  if (names_ != nullptr) strings_.emplace(*names_);
}

const int64_t* KeysToFind::Block(int64_t begin, int64_t n,
                                 int64_t* buffer) const {
  if (strings_.has_value()) {
    const tstring* const texts = keys_->flat<tstring>().data() + begin;
    absl::string_view views[kMostKeys];
    for (int64_t i = 0; i < n; ++i) {
      views[i] = absl::string_view(texts[i].data(), texts[i].size());
    }
    strings_->Find(views, n, buffer, nullptr);
    return buffer;
  }
  if (keys_->dtype() == tensorflow::DT_INT32) {
    std::copy_n(keys_->flat<int32_t>().data() + begin, n, buffer);
    return buffer;
  }
  return KeySpan({keys_->flat<int64_t>().data(), static_cast<size_t>(size())})
      .Block(begin, n, buffer);
}

absl::Status KeyBatch::ReadStrings(const EmbeddingTable& table,
                                   absl::Span<const absl::string_view> keys,
                                   NewKeys new_keys, Executor* executor) {
  StringKeys* const strings = table.strings();
  users_ = std::shared_lock<SharedMutex>(strings->users());
  own_.resize(keys.size());
  span_ = own_;
  if (new_keys == NewKeys::kAdd) {
    return strings->Add(keys, own_.data(), executor);
  }
  strings->Find(keys, own_.data(), executor);
  return absl::OkStatus();
}

void KeyBatch::ForgetStrings(const EmbeddingTable& table) {
  users_ = {};
  StringKeys* const strings = table.strings();
  if (strings != nullptr) strings->Remove(span_, KeysOf(table));
}

void KeyBatch::ForgetStrays(const EmbeddingTable& table) {
  users_ = {};
  tfembed::ForgetStrays(table);
}

void ForgetStrays(const EmbeddingTable& table) {
  constexpr int64_t kSpared = 4096;
  StringKeys* const strings = table.strings();
  if (strings == nullptr) return;
  const int64_t known = table.size() + table.num_waiting();
  if (strings->size() <= 2 * known + kSpared) return;
  strings->Keep(KeysOf(table));
}

KeysStay::KeysStay(absl::Span<const EmbeddingTable* const> tables)
    : whole_(LockWhole<WholeTables::value_type>(tables)) {
  for (const EmbeddingTable* table : tables) {
    if (table->strings() == nullptr) continue;
    users_.emplace_back(table->strings()->users());
  }
}

KeyOutput::KeyOutput(std::vector<const EmbeddingTable*> tables)
    : tables_(std::move(tables)), keys_stay_(tables_) {}

absl::StatusOr<int64_t*> KeyOutput::Allocate(
    tensorflow::OpKernelContext* context, int output,
    std::vector<int64_t> sizes) {
  const TensorShape shape(
      {std::accumulate(sizes.begin(), sizes.end(), int64_t{0})});
  Output to;
  TF_RETURN_IF_ERROR(context->allocate_output(output, shape, &to.tensor));
  to.wide = *to.tensor;
  if (to.tensor->dtype() != tensorflow::DT_INT64) {
    TF_RETURN_IF_ERROR(
        context->allocate_temp(tensorflow::DT_INT64, shape, &to.wide));
  }
  to.sizes = std::move(sizes);
  outputs_.push_back(std::move(to));
  return outputs_.back().wide.flat<int64_t>().data();
}

void KeyOutput::Finish() {
  for (const Output& output : outputs_) {
    const int64_t* keys = output.wide.flat<int64_t>().data();
    if (output.tensor->dtype() == tensorflow::DT_INT32) {
      std::copy_n(keys, output.wide.NumElements(),
                  output.tensor->flat<int32_t>().data());
    } else if (output.tensor->dtype() == tensorflow::DT_STRING) {
      int64_t first = 0;
      for (size_t t = 0; t < tables_.size(); ++t) {
        const auto n = static_cast<size_t>(output.sizes[t]);
        NameKeys(*tables_[t]->strings(), {keys + first, n}, output.tensor,
                 first);
        first += output.sizes[t];
      }
    }
  }
}

void NameKeys(const StringKeys& strings, absl::Span<const int64_t> keys,
              Tensor* names, int64_t first) {
  std::vector<absl::string_view> views(keys.size());
  strings.Strings(keys, views.data());
  tstring* to = names->flat<tstring>().data() + first;
  for (absl::string_view view : views) (to++)->assign(view.data(), view.size());
}

std::vector<absl::string_view> ViewsOf(const Tensor& strings,
                                       Executor* executor) {
  constexpr int64_t kStringsPerTask = 4096;
  const auto texts = strings.flat<tstring>();
  const int64_t n = texts.size();
  std::vector<absl::string_view> views(n);
  ParallelFor(
      executor, (n + kStringsPerTask - 1) / kStringsPerTask, [&](int64_t task) {
        const int64_t begin = task * kStringsPerTask;
        const int64_t end = std::min(n, begin + kStringsPerTask);
        for (int64_t i = begin; i < end; ++i) {
          views[i] = absl::string_view(texts(i).data(), texts(i).size());
        }
      });
  return views;
}

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

absl::Status FindTableOfKeys(tensorflow::OpKernelContext* context, int input,
                             TablePtr* table) {
  TF_RETURN_IF_ERROR(FindTable(context, input, table));
  return CheckKeyDtype(**table, context->expected_output_dtype(0));
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
