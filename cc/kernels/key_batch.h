#ifndef TFEMBED_KERNELS_KEY_BATCH_H_
#define TFEMBED_KERNELS_KEY_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfembed {

// The keys of a batch as the core takes them. Borrows the tensor.
class KeyBatch {
 public:
  // InvalidArgument where they are not of the table's dtype.
  absl::Status Read(const TableResource& table, const tensorflow::Tensor& keys);

  absl::Span<const int64_t> span() const { return span_; }

 private:
  std::vector<int64_t> widened_;
  absl::Span<const int64_t> span_;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_KEY_BATCH_H_
