#include "cc/kernels/kernel_context.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/core/support/block_pool.h"
#include "cc/core/support/guard_memory.h"
#include "cc/core/support/memory_promise.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/types.h"

namespace tfembed {
namespace {

using ::tensorflow::AllocatorAttributes;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// Smaller blocks malloc mostly keeps. It gives each thread memory of its own,
// and which one runs an op is chance: a step of 26 features with 1 MB each had
// up to four times the memory of its rows.
constexpr int64_t kLeastBytes = int64_t{1} << 20;
constexpr size_t kMostKeptBytes = size_t{512} << 20;

class PoolAllocator : public tensorflow::Allocator {
 public:
  std::string Name() override { return "tfembed_pool"; }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override {
    return pool_.Take(num_bytes);
  }
  void DeallocateRaw(void* ptr) override { pool_.Return(ptr); }

 private:
  BlockPool pool_{kMostKeptBytes};
};

// Never destroyed: tensors may outlive what is static.
PoolAllocator* Pool() {
  static PoolAllocator* const pool = new PoolAllocator;
  return pool;
}

bool IsForTheCpuAlone(AllocatorAttributes attributes) {
  return !attributes.gpu_compatible() && !attributes.nic_compatible() &&
         attributes.scope_id <= 0;
}

}  // namespace

absl::Status NoMemoryFor(const tensorflow::OpKernel& kernel) {
  const auto in_words = [&] {
    return absl::ResourceExhaustedError(absl::StrCat(
        "The system refused memory that ", kernel.type_string(),
        " needs beside its inputs and outputs. Give smaller batches, or the "
        "process more memory."));
  };
  return GuardMemory(in_words, MemoryRefused);
}

absl::Status AllocateRows(OpKernelContext* context, int index,
                          const TensorShape& shape, Tensor** output) {
  const tensorflow::DataType dtype = context->expected_output_dtype(index);
  const int64_t bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
  if (bytes >= kLeastBytes && tensorflow::DataTypeCanUseMemcpy(dtype) &&
      IsForTheCpuAlone(context->output_alloc_attr(index))) {
    // The system would promise more than it has. Smaller ones cost a look at
    // what it has left as much as they are worth, and may be there already.
    if (bytes > static_cast<int64_t>(kMostKeptBytes)) {
      const absl::Status there = CheckMemory(bytes);
      if (!there.ok()) {
        return absl::Status(there.code(), absl::StrCat("For rows of shape ",
                                                       shape.DebugString(),
                                                       ": ", there.message()));
      }
    }
    const Tensor rows(Pool(), dtype, shape);
    if (rows.IsInitialized()) {
      context->set_output(index, rows);
      *output = context->mutable_output(index);
      return absl::OkStatus();
    }
  }
  return context->allocate_output(index, shape, output);
}

}  // namespace tfembed
