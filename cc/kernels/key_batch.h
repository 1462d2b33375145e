#ifndef TFEMBED_KERNELS_KEY_BATCH_H_
#define TFEMBED_KERNELS_KEY_BATCH_H_

#include <cstdint>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/rows/value_type.h"
#include "cc/core/support/executor.h"
#include "cc/core/table/embedding_table.h"
#include "cc/core/table/key_source.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tfembed {

// TensorFlow's dtypes of a table's keys and values.
tensorflow::DataType KeyDtype(KeyKind keys);
tensorflow::DataType ValueDtype(ValueType values);

// The dtype of keys in a checkpoint, where int32 is widened.
inline tensorflow::DataType StoredKeyDtype(bool are_strings) {
  return are_strings ? tensorflow::DT_STRING : tensorflow::DT_INT64;
}

// The reverse. InvalidArgument for a dtype that no table has.
absl::Status FindKeyKind(tensorflow::DataType dtype, KeyKind* keys);
absl::Status FindValueType(tensorflow::DataType dtype, ValueType* values);

// InvalidArgument where keys, or values, are not of the table's dtype.
absl::Status CheckKeyDtype(const TableResource& table,
                           tensorflow::DataType dtype);
absl::Status CheckValueDtype(const TableResource& table,
                             tensorflow::DataType dtype);

// As FindTable, for a kernel whose output 0 are keys of the table:
// InvalidArgument also where they are not of the output's dtype.
absl::Status FindTableOfKeys(tensorflow::OpKernelContext* context, int input,
                             TablePtr* table);

// InvalidArgument where rows of the table's type cannot be trained.
absl::Status CheckTrainable(const TableResource& table);

// InvalidArgument where `rows`, the input `name`, has not the shape
// [keys..., width].
absl::Status CheckRows(const TableResource& table,
                       const tensorflow::Tensor& keys, int64_t width,
                       const tensorflow::Tensor& rows,
                       const char* name = "value");

// The treatment of string keys that a table does not have.
enum class NewKeys { kIgnore, kAdd };

// The keys of a batch in the core's form. Borrows the tensor. While it exists
// none of its strings is removed.
class KeyBatch {
 public:
  // InvalidArgument where they are not of the table's dtype; ResourceExhausted.
  absl::Status Read(const TableResource& table, const tensorflow::Tensor& keys,
                    NewKeys new_keys, Executor* executor);

  // Reads strings. REQUIRES: the table's keys are strings.
  absl::Status ReadStrings(const EmbeddingTable& table,
                           absl::Span<const absl::string_view> keys,
                           NewKeys new_keys, Executor* executor);

  absl::Span<const int64_t> span() const { return span_; }

  // Ends the use of the keys, and removes those strings among them that have no
  // row, after rows were removed.
  void ForgetStrings(const EmbeddingTable& table);

  // Ends the use of the keys, and removes all strings without a row if there
  // are many: those of failed writes, of ignored accumulations, of evicted
  // rows.
  void ForgetStrays(const EmbeddingTable& table);

 private:
  std::vector<int64_t> own_;
  absl::Span<const int64_t> span_;
  std::shared_lock<SharedMutex> users_;
};

// The keys of a batch for lookups, which does not copy a tensor of int32 or of
// strings. Borrows tensor and table. While it exists none of its strings is
// removed; after Begin none is added.
class KeysToFind final : public KeySource {
 public:
  // InvalidArgument where they are not of the table's dtype. To be called once,
  // first.
  absl::Status Read(const TableResource& table, const tensorflow::Tensor& keys);

  int64_t size() const override { return keys_->NumElements(); }
  void Begin() override;
  const int64_t* Block(int64_t begin, int64_t n,
                       int64_t* buffer) const override;

 private:
  const tensorflow::Tensor* keys_ = nullptr;
  const StringKeys* names_ = nullptr;  // Null unless they are strings.
  std::shared_lock<SharedMutex> users_;
  std::optional<StringKeys::Reader> strings_;
};

// Removes all strings without a row if there are many. REQUIRES: the caller
// uses no keys of the table.
void ForgetStrays(const EmbeddingTable& table);

// While it exists the content of these tables is not replaced, and none of
// their strings is removed. It is locked before a table's own locks.
class KeysStay {
 public:
  explicit KeysStay(absl::Span<const EmbeddingTable* const> tables);

 private:
  const WholeTables whole_;
  std::vector<std::shared_lock<SharedMutex>> users_;
};

// Converts the core's keys to tensors of the tables' key dtype.
class KeyOutput {
 public:
  // Strings stay what they are while it lives.
  explicit KeyOutput(std::vector<const EmbeddingTable*> tables);

  // Makes the tensor an output of the kernel, one of several, and says where
  // the keys go: sizes[t] of table t, table by table.
  absl::StatusOr<int64_t*> Allocate(tensorflow::OpKernelContext* context,
                                    int output, std::vector<int64_t> sizes);

  // Turns what was written there into the outputs.
  void Finish();

 private:
  const std::vector<const EmbeddingTable*> tables_;
  const KeysStay keys_stay_;
  struct Output {
    tensorflow::Tensor* tensor;
    tensorflow::Tensor wide;
    std::vector<int64_t> sizes;
  };
  std::vector<Output> outputs_;
};

// Writes the names of `keys`, strings, into `names`, from element `first` on.
void NameKeys(const StringKeys& strings, absl::Span<const int64_t> keys,
              tensorflow::Tensor* names, int64_t first = 0);

// The strings of a tensor, borrowed.
std::vector<absl::string_view> ViewsOf(const tensorflow::Tensor& strings,
                                       Executor* executor = nullptr);

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_KEY_BATCH_H_
