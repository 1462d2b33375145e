#include "cc/kernels/mapped_tensor.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/support/memory_block.h"
#include "cc/core/support/memory_promise.h"
#include "tensorflow/core/lib/core/refcount.h"
#include "tensorflow/core/platform/errors.h"

namespace tfembed {
namespace {

class MappedBuffer final : public tensorflow::TensorBuffer {
 public:
  explicit MappedBuffer(MemoryBlock memory)
      : TensorBuffer(memory.data()), memory_(std::move(memory)) {}

  size_t size() const override { return memory_.size(); }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(
      tensorflow::AllocationDescription*) const override {}

 private:
  const MemoryBlock memory_;
};

}  // namespace

absl::StatusOr<tensorflow::Tensor> MapTensor(
    tensorflow::DataType dtype, const tensorflow::TensorShape& shape) {
  constexpr int64_t kMapFrom = 64 << 10, kCheckFrom = 16 << 20;
  const int64_t bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
  if (dtype == tensorflow::DT_STRING || bytes < kMapFrom) {
    tensorflow::Tensor tensor(dtype, shape);
    if (tensor.IsInitialized()) return tensor;
    return absl::ResourceExhaustedError(
        absl::StrCat("there is no memory for ", shape.DebugString()));
  }
  // Chunks are smaller; a file of another program may have any slices.
  if (bytes > kCheckFrom) TF_RETURN_IF_ERROR(CheckMemory(bytes));
  absl::StatusOr<MemoryBlock> memory = MemoryBlock::Allocate(bytes);
  if (!memory.ok()) return memory.status();
  const tensorflow::core::RefCountPtr<MappedBuffer> buffer(
      new MappedBuffer(*std::move(memory)));
  return tensorflow::Tensor(dtype, shape, buffer.get());
}

}  // namespace tfembed
