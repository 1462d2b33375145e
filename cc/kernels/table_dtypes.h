#ifndef TFEMBED_KERNELS_TABLE_DTYPES_H_
#define TFEMBED_KERNELS_TABLE_DTYPES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc/core/embedding_table.h"
#include "cc/core/value_type.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tfembed {

// What TensorFlow calls a table's keys and values.
tensorflow::DataType KeyDtype(KeyKind keys);
tensorflow::DataType ValueDtype(ValueType values);

// What keys are in a checkpoint: int32 ones are widened.
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

// InvalidArgument where rows of the table's type cannot be trained.
absl::Status CheckTrainable(const TableResource& table);

// InvalidArgument where `rows`, the input `name`, has not the shape
// [keys..., width].
absl::Status CheckRows(const TableResource& table,
                       const tensorflow::Tensor& keys, int64_t width,
                       const tensorflow::Tensor& rows,
                       const char* name = "value");

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_TABLE_DTYPES_H_
