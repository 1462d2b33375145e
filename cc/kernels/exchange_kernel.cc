// Parts of any size between workers, by the transport of TensorFlow's
// collectives. A message to a worker is found there by the channel, the number
// of the exchange and both workers:
//
//     sizes known      [head | part]
//     else             [head], then [part] if it has a size
//     with an error    also its text, after the head told how long it is
//
// All workers send and receive all of these, also where one tells an error: the
// next exchange finds nothing left.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/support/mutex.h"
#include "cc/kernels/exchange_channel.h"
#include "cc/kernels/kernel_context.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tfembed {
namespace {

using ::tensorflow::AsyncOpKernel;
using ::tensorflow::DT_UINT8;
using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::ResourceHandle;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;
using ::tensorflow::tstring;

// As long as tensors' memory is aligned, so that a part behind a head is too.
struct alignas(64) MessageHead {
  char magic[8] = {'t', 'f', 'e', 'm', 'b', 'e', 'd', '1'};
  int64_t size = 0;       // Of the part, in bytes.
  int64_t text_size = 0;  // Of the error; 0: there is none.
};
constexpr int64_t kHead = sizeof(MessageHead);
static_assert(kHead == 64);

constexpr int64_t kLongestText = 1 << 16;

// A run of ExchangeParts, which lives until all its messages are through.
class Exchange : public Timed, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(OpKernelContext* context, ExchangeChannelPtr channel,
           bool knows_sizes, AsyncOpKernel::DoneCallback done)
      : context_(context),
        channel_(std::move(channel)),
        knows_sizes_(knows_sizes),
        done_(std::move(done)) {}

  // Reads the inputs and makes the messages. Nothing is sent.
  absl::Status Prepare() {
    const ExchangeChannel::Ends& ends = channel_->ends();
    auto* const executor = context_->collective_executor();
    transport_ = executor == nullptr ? nullptr : executor->remote_access();
    if (transport_ == nullptr) {
      return absl::FailedPreconditionError(
          "Workers exchange parts by TensorFlow's collectives, which this "
          "process has not: make the strategy first.");
    }
    OpInputList parts;
    TF_RETURN_IF_ERROR(context_->input_list("parts", &parts));
    if (parts.size() != ends.peers.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("An exchange must have a part for each of the ",
                       ends.peers.size(), " workers; got ", parts.size(), "."));
    }
    const Tensor *sizes, *error;
    TF_RETURN_IF_ERROR(context_->input("sizes", &sizes));
    TF_RETURN_IF_ERROR(context_->input("error", &error));
    if (knows_sizes_ && sizes->NumElements() != parts.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`sizes` must have one for each of the ", parts.size(),
          " workers; got shape ", sizes->shape().DebugString(), "."));
    }
    if (error->dims() != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`error` must be one text; got ", error->DebugString(), "."));
    }
    peers_.resize(parts.size());
    std::string text = error->scalar<tstring>()();
    if (text.size() > kLongestText) text.resize(kLongestText);
    peers_[ends.worker].text = text;
    Tensor bytes;
    TF_RETURN_IF_ERROR(Bytes(text.size(), &bytes));
    std::memcpy(Data(bytes), text.data(), text.size());
    for (int64_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      peer.part = parts[i];
      if (i == ends.worker) {
        peer.received = peer.part;
        continue;
      }
      MessageHead head;
      head.size = peer.part.NumElements();
      head.text_size = text.size();
      const int64_t behind = knows_sizes_ ? head.size : 0;
      TF_RETURN_IF_ERROR(Bytes(kHead + behind, &peer.head));
      std::memcpy(Data(peer.head), &head, kHead);
      std::memcpy(Data(peer.head) + kHead, Data(peer.part), behind);
      peer.error = bytes;
      int64_t incoming = 0;
      if (knows_sizes_) incoming = sizes->flat<int64_t>()(i);
      if (incoming < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("`sizes` must be 0 or more; got ", incoming, "."));
      }
      TF_RETURN_IF_ERROR(Bytes(kHead + incoming, &peer.head_received));
    }
    key_ = absl::StrCat("tfembed:", ends.name, ":", channel_->NextRun(), ":");
    return absl::OkStatus();
  }

  // Sends and receives. The op is done once all is through, maybe in this call.
  void Start() {
    const auto self = shared_from_this();  // Lives to the end of this call.
    const auto time =
        std::chrono::steady_clock::now() +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::duration<double>(channel_->ends().seconds));
    absl::Status status;
    try {
      deadline_ = Deadlines::Get().Add(time, self);
      for (int64_t i = 0; i < peers_.size(); ++i) {
        if (i != channel_->ends().worker) Start(i);
      }
    } catch (const std::bad_alloc&) {
      status = NoMemoryFor(context_->op_kernel());
    } catch (const std::system_error& error) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("The system refused a thread for the time limit of an "
                       "exchange: ",
                       error.what(), "."));
    }
    End(status);
  }

  void Expire() override {
    std::vector<std::string> missing;
    {
      const MutexLock lock(&mutex_);
      if (left_ == 0) return;
      ++left_;
      for (int64_t i = 0; i < peers_.size(); ++i) {
        if (peers_[i].waits > 0) missing.push_back(channel_->InWords(i));
      }
    }
    End(absl::DeadlineExceededError(absl::StrCat(
        "An exchange of '", channel_->ends().name, "' waited ",
        channel_->ends().seconds, " s for ", absl::StrJoin(missing, ", "),
        ". Every worker must look up and train the same tables, in the same "
        "order and as often.")));
  }

 private:
  // What goes to another worker and comes from there.
  struct Peer {
    Tensor head, part, error;
    Tensor head_received, received, error_received;
    std::string text;  // The error that the worker tells.
    int waits = 0;     // The messages to and from there that are not through.
  };

  // How a message is named after the common part of its key.
  enum Kind : char { kHeads = 'h', kParts = 'p', kTexts = 't' };

  static char* Data(const Tensor& tensor) {
    return const_cast<char*>(tensor.tensor_data().data());
  }

  absl::Status Bytes(int64_t size, Tensor* tensor) const {
    return context_->allocate_temp(DT_UINT8, TensorShape({size}), tensor);
  }

  void Start(int64_t i) {
    Peer& peer = peers_[i];
    Post(i, kHeads, &peer.head);
    if (!knows_sizes_ && peer.part.NumElements() > 0) {
      Post(i, kParts, &peer.part);
    }
    if (peer.error.NumElements() > 0) Post(i, kTexts, &peer.error);
    Receive(i, kHeads, &peer.head_received);
  }

  void Post(int64_t i, Kind kind, const Tensor* tensor) {
    Wait(i);
    const int64_t me = channel_->ends().worker;
    transport_->PostToPeer(
        channel_->ends().peers[i], channel_->TaskOf(i),
        absl::StrCat(key_, me, ">", i, std::string(1, kind)), Here(), nullptr,
        {}, tensor, {}, context_->cancellation_manager(),
        [self = shared_from_this(), i](const absl::Status& status) {
          self->EndOf(i, status);
        });
  }

  void Receive(int64_t i, Kind kind, Tensor* tensor) {
    Wait(i);
    const int64_t me = channel_->ends().worker;
    transport_->RecvFromPeer(
        channel_->ends().peers[i], channel_->TaskOf(i),
        /*peer_is_local=*/false,
        absl::StrCat(key_, i, ">", me, std::string(1, kind)), Here(), nullptr,
        {}, tensor, {}, /*dev_to_dev_stream_index=*/0,
        context_->cancellation_manager(),
        [self = shared_from_this(), i, kind](absl::Status status) {
          if (status.ok()) status = self->Take(i, kind);
          self->EndOf(i, status);
        });
  }

  tensorflow::Device* Here() const {
    return static_cast<tensorflow::Device*>(context_->device());
  }

  // Looks at a message that came, and asks for those that it announces.
  absl::Status Take(int64_t i, Kind kind) {
    try {
      Peer& peer = peers_[i];
      if (kind == kTexts) peer.text = peer.error_received.tensor_data();
      return kind == kHeads ? TakeHead(i) : absl::OkStatus();
    } catch (const std::bad_alloc&) {
      return NoMemoryFor(context_->op_kernel());
    }
  }

  absl::Status TakeHead(int64_t i) {
    Peer& peer = peers_[i];
    MessageHead head;
    const MessageHead expected;
    std::memcpy(&head, Data(peer.head_received), kHead);
    const int64_t behind = peer.head_received.NumElements() - kHead;
    if (std::memcmp(head.magic, expected.magic, sizeof(head.magic)) != 0 ||
        head.size < 0 || (knows_sizes_ && head.size != behind) ||
        head.text_size < 0 || head.text_size > kLongestText) {
      return absl::DataLossError(absl::StrCat(
          "A message of '", channel_->ends().name, "' from ",
          channel_->InWords(i), " is not one of this version, or of another ",
          "size than ", behind, " bytes."));
    }
    if (head.text_size > 0) {
      TF_RETURN_IF_ERROR(Bytes(head.text_size, &peer.error_received));
      Receive(i, kTexts, &peer.error_received);
    }
    if (!knows_sizes_) {
      TF_RETURN_IF_ERROR(context_->allocate_temp(
          peer.part.dtype(), TensorShape({head.size}), &peer.received));
      if (head.size > 0) Receive(i, kParts, &peer.received);
      return absl::OkStatus();
    }
    // The tensor's own dtype is uint8, and its memory that of the message.
    const Tensor behind_head =
        peer.head_received.Slice(kHead, kHead + head.size);
    return peer.received.BitcastFrom(behind_head, peer.part.dtype(),
                                     behind_head.shape());
  }

  void Wait(int64_t i) {
    const MutexLock lock(&mutex_);
    ++left_;
    ++peers_[i].waits;
  }

  void EndOf(int64_t i, const absl::Status& status) {
    {
      const MutexLock lock(&mutex_);
      --peers_[i].waits;
    }
    // The worker itself says why it broke off; without it, the system does.
    End(absl::IsUnavailable(status)
            ? absl::UnavailableError(absl::StrCat(
                  "An exchange of '", channel_->ends().name, "' found ",
                  channel_->InWords(i), " gone: ", status.message()))
            : status);
  }

  // Ends one message. The first error ends them all, on all workers, unless
  // the step was cancelled: then the op that failed first is told.
  void End(const absl::Status& status) {
    if (!status.ok() && IsFirst(status)) {
      auto* const manager = context_->cancellation_manager();
      if (manager == nullptr || !manager->IsCancelled()) {
        context_->collective_executor()->StartAbort(
            absl::AbortedError(status.message()));
      }
    }
    {
      const MutexLock lock(&mutex_);
      if (--left_ > 0) return;
    }
    Deadlines::Get().Remove(deadline_);
    context_->SetStatus(Conclude());
    // The callbacks that hold this object may live longer than its step.
    const auto done = std::move(done_);
    channel_ = nullptr;
    peers_.clear();
    done();
  }

  bool IsFirst(const absl::Status& status) {
    const MutexLock lock(&mutex_);
    if (!status_.ok()) return false;
    status_ = status;
    return true;
  }

  // Sets the outputs. No message is under way.
  absl::Status Conclude() {
    const MutexLock lock(&mutex_);
    if (!status_.ok()) return status_;
    for (int64_t i = 0; i < peers_.size(); ++i) {
      if (peers_[i].text.empty()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("From ", channel_->InWords(i), ": ", peers_[i].text));
    }
    for (int64_t i = 0; i < peers_.size(); ++i) {
      context_->set_output(i, peers_[i].received);
    }
    return absl::OkStatus();
  }

  OpKernelContext* const context_;
  ExchangeChannelPtr channel_;
  const bool knows_sizes_;
  AsyncOpKernel::DoneCallback done_;
  tensorflow::CollectiveRemoteAccess* transport_ = nullptr;
  std::string key_;
  Deadlines::Entry deadline_;
  std::vector<Peer> peers_;  // By worker; one message changes one field.

  Mutex mutex_;
  int64_t left_ ABSL_GUARDED_BY(mutex_) = 1;  // Start, and messages.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class ExchangePartsOp : public AsyncOpKernel {
 public:
  explicit ExchangePartsOp(OpKernelConstruction* construction)
      : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("knows_sizes", &knows_sizes_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<Exchange> exchange;
    try {
      ExchangeChannelPtr channel;
      OP_REQUIRES_OK_ASYNC(
          context,
          LookupResource(context, HandleFromInput(context, 0), &channel), done);
      exchange = std::make_shared<Exchange>(context, std::move(channel),
                                            knows_sizes_, done);
      OP_REQUIRES_OK_ASYNC(context, exchange->Prepare(), done);
    } catch (const std::bad_alloc&) {
      context->SetStatus(NoMemoryFor(*this));
      done();
      return;
    }
    exchange->Start();
  }

 private:
  bool knows_sizes_;
};

class ExchangeChannelOp : public OpKernel {
 public:
  explicit ExchangeChannelOp(OpKernelConstruction* construction)
      : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("peers", &ends_.peers));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("worker", &ends_.worker));
    float seconds;
    OP_REQUIRES_OK(construction, construction->GetAttr("seconds", &seconds));
    ends_.seconds = seconds;
    OP_REQUIRES(construction,
                ends_.worker >= 0 && ends_.worker < ends_.peers.size(),
                absl::InvalidArgumentError(absl::StrCat(
                    "`worker` must be one of the ", ends_.peers.size(),
                    " of `peers`; got ", ends_.worker, ".")));
  }

  void Compute(OpKernelContext* context) override {
    ExchangeChannel::Ends ends = ends_;
    tstring name;
    OP_REQUIRES_OK(context, ReadScalar(context, 0, "label", &name));
    ends.name = name;
    Tensor* handle;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({}), &handle));
    handle->scalar<ResourceHandle>()() = ResourceHandle::MakeRefCountingHandle(
        new ExchangeChannel(std::move(ends)), context->device()->name());
  }

 private:
  ExchangeChannel::Ends ends_;  // But for the name.
};

TFEMBED_KERNEL(ExchangeChannel, ExchangeChannelOp);
TFEMBED_ASYNC_KERNEL(ExchangeParts, ExchangePartsOp);

}  // namespace
}  // namespace tfembed
