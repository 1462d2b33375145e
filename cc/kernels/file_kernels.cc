// Kernels of the ops that write tables as raw files and read such files.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/kernels/disk_file.h"
#include "cc/kernels/file_set.h"
#include "cc/kernels/kernel_context.h"
#include "cc/kernels/progress_log.h"
#include "cc/kernels/row_file_owners.h"
#include "cc/kernels/row_file_reader.h"
#include "cc/kernels/row_file_writer.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

// Refuses an input of another shape; eager calls run no shape function.
absl::Status CheckShape(OpKernelContext* context, int input, const char* name,
                        const TensorShape& shape) {
  if (context->input(input).shape() == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must have shape ", shape.DebugString(),
                   "; got ", context->input(input).shape().DebugString(), "."));
}

absl::Status ReadFolder(OpKernelContext* context, int input,
                        std::string* folder) {
  TF_RETURN_IF_ERROR(CheckShape(context, input, "folder", TensorShape({})));
  *folder = context->input(input).scalar<tstring>()();
  return absl::OkStatus();
}

std::vector<std::string> StringsOf(const Tensor& tensor) {
  const auto texts = tensor.flat<tstring>();
  return std::vector<std::string>(texts.data(), texts.data() + texts.size());
}

// The table as row files know it; `owner` is the op's attribute.
RowFileUser UserOf(const TablePtr& shard, const std::string& owner) {
  // Without an id a shard is a table of its own.
  const std::string own = absl::StrCat(
      "shard ", absl::Hex(reinterpret_cast<uintptr_t>(shard.get())));
  return {shard->name(), owner.empty() ? own : owner, shard.get()};
}

absl::Status ReadFormat(OpKernelConstruction* construction, RowFormat* format) {
  TF_RETURN_IF_ERROR(construction->GetAttr("key_dtype", &format->key_dtype));
  TF_RETURN_IF_ERROR(
      construction->GetAttr("value_dtype", &format->value_dtype));
  TF_RETURN_IF_ERROR(construction->GetAttr("dim", &format->dim));
  if (format->dim < 0 || format->dim > kMaxDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`dim` must be between 0 and ", kMaxDim, "; got ", format->dim, "."));
  }
  for (tensorflow::DataType dtype : {format->key_dtype, format->value_dtype}) {
    if (dtype == tensorflow::DT_STRING || tensorflow::DataTypeSize(dtype) > 0) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("Raw files hold numbers, bools and strings; got ",
                     tensorflow::DataTypeString(dtype), "."));
  }
  return absl::OkStatus();
}

class TableSaveFilesOp : public OpKernel {
 public:
  explicit TableSaveFilesOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("buffer_size", &buffer_size_));
    OP_REQUIRES_OK(construction, construction->GetAttr("append", &append_));
    OP_REQUIRES_OK(construction, construction->GetAttr("deal_by_low_bits",
                                                       &deal_by_low_bits_));
    OP_REQUIRES_OK(construction, construction->GetAttr("owner", &owner_));
  }

  void Compute(OpKernelContext* context) override {
    const int num_tables = context->num_inputs() - 2;
    std::vector<TablePtr> tables(num_tables);
    RowFileSave save;
    for (int i = 0; i < num_tables; ++i) {
      OP_REQUIRES_OK(context, FindTable(context, i, &tables[i]));
      save.tables.push_back(tables[i]->table());
    }
    OP_REQUIRES_OK(context, ReadFolder(context, num_tables, &save.folder));
    OP_REQUIRES_OK(context, CheckShape(context, num_tables + 1, "stems",
                                       TensorShape({num_tables})));
    save.stems = StringsOf(context->input(num_tables + 1));
    save.name = tables[0]->name();
    save.buffer_rows = buffer_size_;
    save.append = append_;
    save.deal_by_low_bits = deal_by_low_bits_;
    TfExecutor executor(context);
    const FileFolder folder(context->env(), save.folder);
    RowFileClaim claim(folder, UserOf(tables[0], owner_));
    const absl::Status claimed = claim.Take(save.stems);
    OP_REQUIRES(context, claimed.ok(),
                absl::Status(
                    claimed.code(),
                    absl::StrCat("Table '", save.name, "' cannot be saved to '",
                                 save.folder, "': ", claimed.message())));
    OP_REQUIRES_OK(context, SaveRowFiles(context->env(), save, &executor));
  }

 private:
  int64_t buffer_size_ = 0;
  bool append_ = false;
  bool deal_by_low_bits_ = false;
  std::string owner_;
};

class RowFilesCheckOp : public OpKernel {
 public:
  explicit RowFilesCheckOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, ReadFormat(construction, &format_));
    OP_REQUIRES_OK(construction, construction->GetAttr("owner", &owner_));
  }

  void Compute(OpKernelContext* context) override {
    std::string path;
    TablePtr table;
    OP_REQUIRES_OK(context, FindTable(context, 0, &table));
    const int last = context->num_inputs() - 1;
    OP_REQUIRES_OK(context, ReadFolder(context, last - 1, &path));
    const Tensor& stems = context->input(last);
    const TensorShape shape({stems.NumElements(), 2});
    Tensor *paths, *sizes;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &paths));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &sizes));
    const FileFolder folder(context->env(), path);
    int64_t i = 0;
    for (const std::string& stem : StringsOf(stems)) {
      const auto pair = CheckRowFiles(folder, stem, format_);
      OP_REQUIRES_OK(context, pair.status());
      paths->matrix<tstring>()(i, 0) = pair->keys_path;
      paths->matrix<tstring>()(i, 1) = pair->values_path;
      sizes->matrix<int64_t>()(i, 0) = pair->keys_bytes;
      sizes->matrix<int64_t>()(i, 1) = pair->values_bytes;
      ++i;
    }
    for (const std::string& stem : StringsOf(stems)) {
      NoteLoaded(folder, stem, UserOf(table, owner_));
    }
  }

 private:
  RowFormat format_;
  std::string owner_;
};

// How far the loads of pairs are, each of which reads many times. Thread-safe.
class LoadProgress {
 public:
  // A read of `pair` went from `before` to `after`.
  void Note(const RowFilePair& pair, const RowFileOffsets& before,
            const RowFileOffsets& after) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (before.keys == 0 && before.values == 0) {
      logs_[pair.values_path] = std::make_unique<ProgressLog>(
          absl::StrCat("Loading '", pair.values_path, "' and its keys"),
          pair.keys_bytes + pair.values_bytes, "bytes");
    }
    const auto log = logs_.find(pair.values_path);
    if (log == logs_.end()) return;
    log->second->Add(after.keys + after.values - before.keys - before.values);
    if (after.keys >= pair.keys_bytes) logs_.erase(log);
  }

 private:
  std::mutex mutex_;
  // By the path of the values. A load that fails leaves its log until the next.
  std::map<std::string, std::unique_ptr<ProgressLog>> logs_;
};

class RowFilesReadOp : public OpKernel {
 public:
  explicit RowFilesReadOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, ReadFormat(construction, &format_));
    OP_REQUIRES_OK(construction, construction->GetAttr("max_rows", &max_rows_));
  }

  void Compute(OpKernelContext* context) override {
    for (int i = 0; i < 2; ++i) {
      OP_REQUIRES_OK(context,
                     CheckShape(context, i, i == 0 ? "paths" : "offsets",
                                TensorShape({2})));
    }
    RowFilePair pair;
    RowFileOffsets offsets;
    OP_REQUIRES_OK(context, ReadInputs(context, &pair, &offsets));
    const RowFileOffsets before = offsets;
    Tensor keys, values;
    OP_REQUIRES_OK(context, ReadRowFiles(context->env(), pair, format_,
                                         max_rows_, &offsets, &keys, &values));
    progress_.Note(pair, before, offsets);
    context->set_output(0, keys);
    context->set_output(1, values);
    Tensor* next;
    OP_REQUIRES_OK(context,
                   context->allocate_output(2, TensorShape({2}), &next));
    next->vec<int64_t>()(0) = offsets.keys;
    next->vec<int64_t>()(1) = offsets.values;
  }

 private:
  static absl::Status ReadInputs(OpKernelContext* context, RowFilePair* pair,
                                 RowFileOffsets* offsets) {
    const auto paths = context->input(0).vec<tstring>();
    const auto places = context->input(1).vec<int64_t>();
    *pair = {paths(0), paths(1), 0, 0};
    *offsets = {places(0), places(1)};
    const auto keys = RegularFileSize(context->env(), pair->keys_path);
    if (!keys.ok()) return keys.status();
    const auto values = RegularFileSize(context->env(), pair->values_path);
    if (!values.ok()) return values.status();
    pair->keys_bytes = *keys;
    pair->values_bytes = *values;
    if (0 <= offsets->keys && offsets->keys <= pair->keys_bytes &&
        0 <= offsets->values && offsets->values <= pair->values_bytes) {
      return absl::OkStatus();
    }
    return absl::OutOfRangeError(
        absl::StrCat("`offsets` must be in [0, ", pair->keys_bytes,
                     "] and [0, ", pair->values_bytes, "]; got ", offsets->keys,
                     " and ", offsets->values, "."));
  }

  RowFormat format_;
  int64_t max_rows_ = 0;
  LoadProgress progress_;
};

TFEMBED_KERNEL(TableSaveFiles, TableSaveFilesOp);
TFEMBED_KERNEL(RowFilesCheck, RowFilesCheckOp);
TFEMBED_KERNEL(RowFilesRead, RowFilesReadOp);

}  // namespace
}  // namespace tfembed
