// CPU kernels of TensorFlow's ops between the replicas of a TPU program, which
// no wheel has. Their priority is below the default, so that another kernel of
// the same op and device wins.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/core/support/executor.h"
#include "cc/kernels/kernel_context.h"
#include "cc/kernels/replica_meeting.h"
#include "tensorflow/core/framework/bfloat16.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tfembed {
namespace {

using ::tensorflow::DEVICE_CPU;
using ::tensorflow::KernelDefBuilder;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

using Group = std::vector<int32_t>;  // Replicas.

// The groups that `group_assignment`, input 1 of each replica, deals the
// replicas to; each is in one group.
absl::Status ReadGroups(absl::Span<OpKernelContext* const> replicas,
                        std::vector<Group>* groups) {
  const Tensor& given = replicas[0]->input(1);
  const int32_t size = replicas.size();
  if (given.dims() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("`group_assignment` must be a matrix with a row for each "
                     "group of replicas; got shape ",
                     given.shape().DebugString(), "."));
  }
  std::vector<bool> found(size);
  const auto rows = given.matrix<int32_t>();
  for (int64_t i = 0; i < given.dim_size(0); ++i) {
    Group& group = groups->emplace_back();
    for (int64_t j = 0; j < given.dim_size(1); ++j) {
      const int32_t replica = rows(i, j);
      if (replica < 0 || replica >= size || found[replica]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "`group_assignment` must name each of the ", size,
            " replicas once; got ", given.SummarizeValue(64, true), "."));
      }
      found[replica] = true;
      group.push_back(replica);
    }
  }
  if (std::find(found.begin(), found.end(), false) != found.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`group_assignment` must name each of the ", size,
                     " replicas; got ", given.SummarizeValue(64, true), "."));
  }
  return absl::OkStatus();
}

absl::Status CheckSameShapes(absl::Span<OpKernelContext* const> replicas) {
  const TensorShape& first = replicas[0]->input(0).shape();
  for (size_t r = 1; r < replicas.size(); ++r) {
    const TensorShape& shape = replicas[r]->input(0).shape();
    if (shape != first) {
      return absl::InvalidArgumentError(
          absl::StrCat("Replicas must give tensors of one shape; got ",
                       first.DebugString(), " from replica 0 and ",
                       shape.DebugString(), " from replica ", r, "."));
    }
  }
  return absl::OkStatus();
}

// Sums over each group's replicas, in their order, so that the result does not
// depend on who came first. Outside of replicas the op is an identity, whatever
// its groups.
template <typename T>
class CrossReplicaSumOp : public MeetingKernel {
 public:
  using MeetingKernel::MeetingKernel;

 protected:
  absl::Status Compute(Contexts replicas) const override {
    if (replicas.size() == 1) {
      replicas[0]->set_output(0, replicas[0]->input(0));
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(CheckSameShapes(replicas));
    std::vector<Group> groups;
    TF_RETURN_IF_ERROR(ReadGroups(replicas, &groups));
    for (Group& group : groups) {
      std::sort(group.begin(), group.end());
      Tensor sum;
      TF_RETURN_IF_ERROR(Sum(replicas, group, &sum));
      for (const int32_t member : group) replicas[member]->set_output(0, sum);
    }
    return absl::OkStatus();
  }

 private:
  // Narrow floats are rounded once.
  using Wide = std::conditional_t<std::is_same_v<T, Eigen::half> ||
                                      std::is_same_v<T, tensorflow::bfloat16>,
                                  float, T>;
  static constexpr int64_t kBlock = 16384;

  static absl::Status Sum(Contexts replicas, const Group& group, Tensor* sum) {
    OpKernelContext* const context = replicas[group[0]];
    const Tensor& first = context->input(0);
    TF_RETURN_IF_ERROR(
        context->allocate_temp(first.dtype(), first.shape(), sum));
    std::vector<const T*> inputs;
    for (const int32_t member : group) {
      inputs.push_back(replicas[member]->input(0).flat<T>().data());
    }
    T* const to = sum->flat<T>().data();
    const int64_t size = sum->NumElements();
    TfExecutor executor(context);
    ParallelFor(&executor, (size + kBlock - 1) / kBlock, [&](int64_t block) {
      const int64_t end = std::min(size, (block + 1) * kBlock);
      for (int64_t i = block * kBlock; i < end; ++i) {
        Wide total = static_cast<Wide>(inputs[0][i]);
        for (size_t m = 1; m < inputs.size(); ++m) {
          total += static_cast<Wide>(inputs[m][i]);
        }
        to[i] = static_cast<T>(total);
      }
    });
    return absl::OkStatus();
  }
};

// Of an op of TensorFlow's own, which may get a kernel there too.
#define TFEMBED_REPLICA_KERNEL(op) \
  KernelDefBuilder(op).Device(DEVICE_CPU).Priority(-1)
#define TFEMBED_REGISTER_SUM(T)                                         \
  TFEMBED_REGISTER_KERNEL(                                              \
      TFEMBED_REPLICA_KERNEL("CrossReplicaSum").TypeConstraint<T>("T"), \
      CrossReplicaSumOp<T>)

TFEMBED_REGISTER_SUM(Eigen::half);
TFEMBED_REGISTER_SUM(tensorflow::bfloat16);
TFEMBED_REGISTER_SUM(float);
TFEMBED_REGISTER_SUM(double);
TFEMBED_REGISTER_SUM(int32_t);
TFEMBED_REGISTER_SUM(uint32_t);

// Bytes of one element behind one position of each dimension.
std::vector<int64_t> ByteStrides(const Tensor& tensor) {
  std::vector<int64_t> strides(tensor.dims());
  int64_t bytes = tensorflow::DataTypeSize(tensor.dtype());
  for (int d = tensor.dims() - 1; d >= 0; --d) {
    strides[d] = bytes;
    bytes *= tensor.dim_size(d);
  }
  return strides;
}

char* Bytes(const Tensor& tensor) {
  return const_cast<char*>(tensor.tensor_data().data());
}

// Copies a box of `shape`, which begins at `from` and `to`, dimension by
// dimension from `dim` on.
void CopyBox(const TensorShape& shape, int dim,
             const std::vector<int64_t>& from_strides,
             const std::vector<int64_t>& to_strides, const char* from,
             char* to) {
  if (dim == shape.dims() - 1) {
    std::memcpy(to, from, shape.dim_size(dim) * from_strides[dim]);
    return;
  }
  for (int64_t i = 0; i < shape.dim_size(dim); ++i) {
    CopyBox(shape, dim + 1, from_strides, to_strides,
            from + i * from_strides[dim], to + i * to_strides[dim]);
  }
}

// Member i of a group gets the i-th part of each member's tensor, laid side by
// side in the order of the group.
class AllToAllOp : public MeetingKernel {
 public:
  explicit AllToAllOp(OpKernelConstruction* construction)
      : MeetingKernel(construction) {
    if (!construction->status().ok()) return;
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("concat_dimension", &concat_));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("split_dimension", &split_));
    OP_REQUIRES_OK(construction, construction->GetAttr("split_count", &count_));
  }

 protected:
  absl::Status Compute(Contexts replicas) const override {
    TF_RETURN_IF_ERROR(CheckSameShapes(replicas));
    std::vector<Group> groups;
    TF_RETURN_IF_ERROR(ReadGroups(replicas, &groups));
    const TensorShape& shape = replicas[0]->input(0).shape();
    if (split_ < 0 || concat_ < 0 || split_ >= shape.dims() ||
        concat_ >= shape.dims() || count_ < 1 ||
        shape.dim_size(split_) % count_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "AllToAll splits dimension ", split_, " by ", count_,
          " and concatenates dimension ", concat_, ", which a tensor of shape ",
          shape.DebugString(), " does not allow."));
    }
    for (const Group& group : groups) {
      if (static_cast<int64_t>(group.size()) != count_) {
        return absl::InvalidArgumentError(absl::StrCat(
            "AllToAll must split by as many parts as a group has replicas; "
            "got ",
            count_, " parts for ", group.size(), " of ", replicas.size(),
            " replicas."));
      }
      TF_RETURN_IF_ERROR(Exchange(replicas, group));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Exchange(Contexts replicas, const Group& group) const {
    TensorShape part = replicas[group[0]]->input(0).shape();
    part.set_dim(split_, part.dim_size(split_) / count_);
    TensorShape whole = part;
    whole.set_dim(concat_, part.dim_size(concat_) * count_);
    for (int64_t i = 0; i < count_; ++i) {
      Tensor* out;
      TF_RETURN_IF_ERROR(replicas[group[i]]->allocate_output(0, whole, &out));
      if (out->NumElements() == 0) continue;
      const std::vector<int64_t> to = ByteStrides(*out);
      for (int64_t j = 0; j < count_; ++j) {
        const Tensor& in = replicas[group[j]]->input(0);
        const std::vector<int64_t> from = ByteStrides(in);
        CopyBox(part, 0, from, to,
                Bytes(in) + i * part.dim_size(split_) * from[split_],
                Bytes(*out) + j * part.dim_size(concat_) * to[concat_]);
      }
    }
    return absl::OkStatus();
  }

  int64_t concat_;
  int64_t split_;
  int64_t count_;
};

TFEMBED_REGISTER_KERNEL(TFEMBED_REPLICA_KERNEL("AllToAll"), AllToAllOp);

// A pair's target gets the source's tensor; who is no target gets zeros.
class CollectivePermuteOp : public MeetingKernel {
 public:
  using MeetingKernel::MeetingKernel;

 protected:
  absl::Status Compute(Contexts replicas) const override {
    TF_RETURN_IF_ERROR(CheckSameShapes(replicas));
    std::vector<int32_t> sources(replicas.size(), -1);
    TF_RETURN_IF_ERROR(ReadPairs(replicas, &sources));
    for (size_t r = 0; r < replicas.size(); ++r) {
      if (sources[r] >= 0) {
        replicas[r]->set_output(0, replicas[sources[r]]->input(0));
        continue;
      }
      Tensor* zeros;
      TF_RETURN_IF_ERROR(replicas[r]->allocate_output(
          0, replicas[r]->input(0).shape(), &zeros));
      std::memset(Bytes(*zeros), 0, zeros->TotalBytes());
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status ReadPairs(Contexts replicas,
                                std::vector<int32_t>* sources) {
    const Tensor& given = replicas[0]->input(1);
    const int32_t size = replicas.size();
    if (given.dims() != 2 || given.dim_size(1) != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("`source_target_pairs` must have shape [pairs, 2]; got ",
                       given.shape().DebugString(), "."));
    }
    std::vector<bool> sends(size);
    const auto pairs = given.matrix<int32_t>();
    for (int64_t i = 0; i < given.dim_size(0); ++i) {
      const int32_t source = pairs(i, 0);
      const int32_t target = pairs(i, 1);
      if (std::min(source, target) < 0 || std::max(source, target) >= size ||
          sends[source] || (*sources)[target] >= 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "`source_target_pairs` must name each of the ", size,
            " replicas at most once as a source and once as a target; got ",
            given.SummarizeValue(64, true), "."));
      }
      sends[source] = true;
      (*sources)[target] = source;
    }
    return absl::OkStatus();
  }
};

TFEMBED_REGISTER_KERNEL(TFEMBED_REPLICA_KERNEL("CollectivePermute"),
                        CollectivePermuteOp);

}  // namespace
}  // namespace tfembed
