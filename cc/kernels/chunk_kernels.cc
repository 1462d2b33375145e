// Kernels that read a saved table chunk by chunk.
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/kernels/checkpoint_files.h"
#include "cc/kernels/scalar_input.h"
#include "cc/kernels/table_reader.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfembed {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

// Outputs: keys, what is read beside them, and how many chunks there are.
class ChunkOp : public OpKernel {
 public:
  explicit ChunkOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("tensor_name", &tensor_name_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Read(context));
  }

 protected:
  virtual int64_t NumChunks(const TableReader& reader) const = 0;

  // REQUIRES: 0 <= chunk < NumChunks(*reader).
  virtual absl::Status ReadChunk(TableReader* reader, int64_t chunk,
                                 const EmbeddingTable& table, Tensor* keys,
                                 Tensor* beside) const = 0;

 private:
  absl::Status Read(OpKernelContext* context) {
    TablePtr table;
    TF_RETURN_IF_ERROR(FindTable(context, 0, &table));
    tstring prefix;
    int64_t chunk = 0;
    TF_RETURN_IF_ERROR(ReadScalar(context, 1, "prefix", &prefix));
    TF_RETURN_IF_ERROR(ReadScalar(context, 2, "chunk", &chunk));
    CheckpointFiles files(context->env(), prefix);
    TF_RETURN_IF_ERROR(files.status());
    TableReader reader(table->name(), tensor_name_, &files);
    TF_RETURN_IF_ERROR(reader.Open(*table->table()));
    const int64_t num_chunks = NumChunks(reader);
    if (chunk < 0 || chunk >= num_chunks) {
      return absl::OutOfRangeError(
          absl::StrCat("`chunk` must be in [0, ", num_chunks, "); got ", chunk,
                       " for table '", table->name(), "'."));
    }
    Tensor keys, beside;
    TF_RETURN_IF_ERROR(
        ReadChunk(&reader, chunk, *table->table(), &keys, &beside));
    const tensorflow::DataType wanted = context->expected_output_dtype(0);
    if (keys.dtype() != wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat("The saved keys of table '", table->name(), "' are ",
                       tensorflow::DataTypeString(keys.dtype()), "; got Tkey ",
                       tensorflow::DataTypeString(wanted), "."));
    }
    context->set_output(0, keys);
    context->set_output(1, beside);
    Tensor* count;
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({}), &count));
    count->scalar<int64_t>()() = num_chunks;
    return absl::OkStatus();
  }

  std::string tensor_name_;
};

class TableReadChunkOp final : public ChunkOp {
 public:
  explicit TableReadChunkOp(OpKernelConstruction* construction)
      : ChunkOp(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("load_slots", &load_slots_));
  }

 protected:
  int64_t NumChunks(const TableReader& reader) const override {
    return reader.num_chunks();
  }
  absl::Status ReadChunk(TableReader* reader, int64_t chunk,
                         const EmbeddingTable& table, Tensor* keys,
                         Tensor* rows) const override {
    return reader->ReadChunk(chunk, table, load_slots_, keys, rows);
  }

 private:
  bool load_slots_;
};

class TableReadWaitingOp final : public ChunkOp {
 public:
  using ChunkOp::ChunkOp;

 protected:
  int64_t NumChunks(const TableReader& reader) const override {
    return reader.num_waiting_chunks();
  }
  absl::Status ReadChunk(TableReader* reader, int64_t chunk,
                         const EmbeddingTable& /*table*/, Tensor* keys,
                         Tensor* seen) const override {
    return reader->ReadWaiting(chunk, keys, seen);
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfembed>TableReadChunk").Device(DEVICE_CPU),
                        TableReadChunkOp);
REGISTER_KERNEL_BUILDER(Name("Tfembed>TableReadWaiting").Device(DEVICE_CPU),
                        TableReadWaitingOp);

}  // namespace
}  // namespace tfembed
