#ifndef TFEMBED_KERNELS_SLICE_BUFFERS_H_
#define TFEMBED_KERNELS_SLICE_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tfembed {

// The memory in which a checkpoint's slices are put together, one for each
// tensor of it. Of a slice that is freed, the bundle's index takes some bytes
// for what it keeps; the next slice then does not fit there, and the heap grows
// by a chunk each time, to a whole table's size.
class SliceBuffers {
 public:
  // Memory for a slice of `tensor`, until the next one is asked for. REQUIRES:
  // one dtype and one row shape for each tensor, at least one row.
  tensorflow::Tensor Get(const std::string& tensor, tensorflow::DataType dtype,
                         const tensorflow::TensorShape& shape) {
    tensorflow::Tensor& buffer = buffers_[tensor];
    const int64_t rows = shape.dim_size(0);
    if (buffer.dim_size(0) < rows) buffer = tensorflow::Tensor(dtype, shape);
    return buffer.Slice(0, rows);
  }

 private:
  absl::flat_hash_map<std::string, tensorflow::Tensor> buffers_;
};

// A slice that is there already, for BundleWriter, which copies its bytes
// before it returns. They may be unaligned, and have to stay until then.
inline tensorflow::Tensor BorrowSlice(tensorflow::DataType dtype,
                                      const tensorflow::TensorShape& shape,
                                      const void* data) {
  class Borrowed final : public tensorflow::TensorBuffer {
   public:
    Borrowed(const void* data, size_t size)
        : TensorBuffer(const_cast<void*>(data)), size_(size) {}
    size_t size() const override { return size_; }
    bool OwnsMemory() const override { return false; }
    TensorBuffer* root_buffer() override { return this; }
    void FillAllocationDescription(
        tensorflow::AllocationDescription*) const override {}

   private:
    const size_t size_;
  };
  const tensorflow::core::RefCountPtr<Borrowed> buffer(new Borrowed(
      data, shape.num_elements() * tensorflow::DataTypeSize(dtype)));
  return tensorflow::Tensor(dtype, shape, buffer.get());
}

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_SLICE_BUFFERS_H_
