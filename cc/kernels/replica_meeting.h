#ifndef TFEMBED_KERNELS_REPLICA_MEETING_H_
#define TFEMBED_KERNELS_REPLICA_MEETING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tfembed {

// A kernel that the simulated replicas of a step run together: each of a
// graph's R copies of an op waits, without blocking a thread, for the other
// copies. Copies find one another by attributes of their nodes:
//
//     _tfembed_replicas  R; without the attribute the op has no copies
//     _tfembed_replica   0 <= r < R
//     _tfembed_key       the same for all copies, and for no other op
//
// and by the step and the iteration of the loop that they run in. A copy that
// runs repeatedly there, as in a function, meets the others in the order of
// its runs. Functions do not know the step: steps of one graph with a copy in a
// function must not run at the same time. Cancelling a step releases waiting
// copies.
class MeetingKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit MeetingKernel(tensorflow::OpKernelConstruction* construction);

  void ComputeAsync(tensorflow::OpKernelContext* context,
                    DoneCallback done) final;

 protected:
  using Contexts = absl::Span<tensorflow::OpKernelContext* const>;

  // Sets the output of each copy, given by replica. An op without copies is the
  // only replica. Runs on the thread of the copy that came last.
  virtual absl::Status Compute(Contexts replicas) const = 0;

 private:
  // Compute, or ResourceExhausted where it is refused memory.
  absl::Status ComputeWithinMemory(Contexts replicas) const;

  int64_t replicas_ = 1;
  int64_t replica_ = 0;
  std::string key_;
};

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_REPLICA_MEETING_H_
