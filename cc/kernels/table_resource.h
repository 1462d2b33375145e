#ifndef TFEMBED_KERNELS_TABLE_RESOURCE_H_
#define TFEMBED_KERNELS_TABLE_RESOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/table/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {

// An EmbeddingTable behind a TensorFlow resource handle. Anonymous handles own
// it: the table's memory goes with the last of them. Thread-safe as the table.
class TableResource : public tensorflow::ResourceBase {
 public:
  TableResource(std::string name, std::unique_ptr<EmbeddingTable> table)
      : name_(std::move(name)), table_(std::move(table)) {}

  // The table's name in error messages.
  const std::string& name() const { return name_; }

  EmbeddingTable* table() const { return table_.get(); }

  std::string DebugString() const override {
    return absl::StrCat("tfembed table '", name_, "' of dim ", table_->dim(),
                        " with ", table_->size(), " keys");
  }

  int64_t MemoryUsed() const override {
    const TableStats stats = table_->stats();
    return stats.index_bytes + stats.row_bytes;
  }

 private:
  const std::string name_;
  const std::unique_ptr<EmbeddingTable> table_;
};

using TablePtr = tensorflow::core::RefCountPtr<TableResource>;

// `status` with the table's name before its message.
inline absl::Status NameTable(const TableResource& table,
                              const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("Table '", table.name(),
                                                  "': ", status.message()));
}

// The handle that is input `input`. InvalidArgument where there are none or
// several.
inline absl::Status ReadHandle(tensorflow::OpKernelContext* context, int input,
                               tensorflow::ResourceHandle* handle) {
  const tensorflow::Tensor& tensor = context->input(input);
  if (tensor.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("A handle must be a scalar; got shape ",
                     tensor.shape().DebugString(), "."));
  }
  *handle = tensor.scalar<tensorflow::ResourceHandle>()();
  return absl::OkStatus();
}

// The table whose handle is input `input`; InvalidArgument where the handle is
// of something else, NotFound where the table is gone.
inline absl::Status FindTable(tensorflow::OpKernelContext* context, int input,
                              TablePtr* table) {
  tensorflow::ResourceHandle handle;
  TF_RETURN_IF_ERROR(ReadHandle(context, input, &handle));
  return tensorflow::LookupResource(context, handle, table);
}

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_TABLE_RESOURCE_H_
