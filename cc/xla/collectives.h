#ifndef TFEMBED_XLA_COLLECTIVES_H_
#define TFEMBED_XLA_COLLECTIVES_H_

#include <cstdint>

#include "cc/xla/builder.h"

// What replicas tell each other. All replicas must run each of these equally
// often.
namespace tfembed {

// The smallest, or largest, x of all replicas, element by element; int32.
xla::XlaOp MinimumOfReplicas(xla::XlaOp x, int64_t replicas);
xla::XlaOp MaximumOfReplicas(xla::XlaOp x, int64_t replicas);

// Part r of x [replicas, ...] goes to replica r; what came from replica r is
// part r of the result.
xla::XlaOp Exchanged(xla::XlaOp x, int64_t replicas);

}  // namespace tfembed

#endif  // TFEMBED_XLA_COLLECTIVES_H_
