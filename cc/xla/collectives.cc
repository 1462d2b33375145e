#include "cc/xla/collectives.h"

#include <vector>

namespace tfembed {
namespace {

std::vector<xla::ReplicaGroup> Everyone(int64_t replicas) {
  std::vector<xla::ReplicaGroup> groups(1);
  for (int64_t r = 0; r < replicas; ++r) groups[0].add_replica_ids(r);
  return groups;
}

}  // namespace

xla::XlaOp MinimumOfReplicas(xla::XlaOp x, int64_t replicas) {
  return xla::AllReduce(x,
                        xla::CreateScalarMinComputation(xla::S32, x.builder()),
                        Everyone(replicas));
}

xla::XlaOp MaximumOfReplicas(xla::XlaOp x, int64_t replicas) {
  return xla::AllReduce(x,
                        xla::CreateScalarMaxComputation(xla::S32, x.builder()),
                        Everyone(replicas));
}

xla::XlaOp Exchanged(xla::XlaOp x, int64_t replicas) {
  return xla::AllToAll(x, /*split_dimension=*/0, /*concat_dimension=*/0,
                       replicas, Everyone(replicas));
}

}  // namespace tfembed
