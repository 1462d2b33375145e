#include "cc/kernels/replica_meeting.h"

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "cc/core/support/guard_memory.h"
#include "cc/core/support/mutex.h"
#include "cc/kernels/kernel_context.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/platform/env.h"

namespace tfembed {
namespace {

using ::tensorflow::CancellationManager;
using ::tensorflow::CancellationToken;
using ::tensorflow::OpKernelContext;

// A copy's run, from when the copy came until its op is done.
struct MeetingCall {
  OpKernelContext* context;
  tensorflow::AsyncOpKernel::DoneCallback done;
  bool cancelled = false;  // Before the call was in a meeting.

  CancellationManager* manager = nullptr;
  CancellationToken token = 0;
};
using MeetingCallPtr = std::shared_ptr<MeetingCall>;

// Step or -1, key, iteration of the loop.
using MeetingKey = std::tuple<int64_t, std::string, int64_t>;

// The calls that wait for others. Thread-safe.
class Meetings {
 public:
  // By replica; null where a replica has not come.
  using Calls = std::vector<MeetingCallPtr>;

  static Meetings& Get() {
    static Meetings* const meetings = new Meetings;
    return *meetings;
  }

  // Adds a call to the first meeting that lacks it. All calls of the meeting
  // once that is complete, else none. False, with nothing done, where the call
  // was cancelled before.
  bool Join(const MeetingKey& key, int64_t replicas, int64_t replica,
            const MeetingCallPtr& call, Calls* complete) {
    const MutexLock lock(&mutex_);
    if (call->cancelled) return false;
    std::list<Meeting>& queue = meetings_[key];
    auto meeting = queue.begin();
    while (meeting != queue.end() && meeting->calls[replica] != nullptr) {
      ++meeting;
    }
    if (meeting == queue.end()) {
      meeting = queue.insert(queue.end(), {Calls(replicas), 0});
    }
    meeting->calls[replica] = call;
    if (++meeting->present < replicas) return true;
    *complete = std::move(meeting->calls);
    queue.erase(meeting);
    if (queue.empty()) meetings_.erase(key);
    return true;
  }

  // Takes a call out of its meeting. False where it is in none: its own thread
  // sees that it was cancelled, or the meeting was complete.
  bool Leave(const MeetingKey& key, int64_t replica,
             const MeetingCallPtr& call) {
    const MutexLock lock(&mutex_);
    const auto queue = meetings_.find(key);
    if (queue != meetings_.end()) {
      for (auto m = queue->second.begin(); m != queue->second.end(); ++m) {
        if (m->calls[replica] != call) continue;
        m->calls[replica] = nullptr;
        if (--m->present == 0) queue->second.erase(m);
        if (queue->second.empty()) meetings_.erase(queue);
        return true;
      }
    }
    call->cancelled = true;
    return false;
  }

 private:
  struct Meeting {
    Calls calls;
    int64_t present;
  };

  Mutex mutex_;
  std::map<MeetingKey, std::list<Meeting>> meetings_ ABSL_GUARDED_BY(mutex_);
};

// For how long a cancelled call holds its status back. A step reports the first
// error that reaches it, and one from within a function cancels the step before
// it does.
constexpr int64_t kMicrosToLetTheCauseBeFirst = 50000;

void EndCancelled(const MeetingCallPtr& call) {
  const auto end = [call] {
    call->context->SetStatus(absl::CancelledError(
        "The step was cancelled while replicas waited for one another."));
    call->done();
  };
  GuardMemory(
      [&] {
        tensorflow::Env::Default()->SchedClosureAfter(
            kMicrosToLetTheCauseBeFirst, end);
      },
      end);
}

// Joins a call to its meeting, or ends the call where it was cancelled; all
// calls of the meeting once that is complete. Where it throws, the call is in
// no meeting.
void Meet(const MeetingKey& key, int64_t replicas, int64_t replica,
          const MeetingCallPtr& call, Meetings::Calls* complete) {
  // The callback comes first: a call in a meeting may be done, and the step's
  // manager gone, at any moment.
  CancellationManager* const manager = call->manager;
  if (manager != nullptr) {
    call->token = manager->get_cancellation_token();
    if (!manager->RegisterCallback(call->token, [key, call, replica] {
          if (Meetings::Get().Leave(key, replica, call)) EndCancelled(call);
        })) {
      EndCancelled(call);
      return;
    }
  }
  bool joined = false;
  try {
    joined = Meetings::Get().Join(key, replicas, replica, call, complete);
  } catch (const std::bad_alloc&) {
    if (manager != nullptr) manager->DeregisterCallback(call->token);
    throw;
  }
  if (!joined) EndCancelled(call);
}

}  // namespace

MeetingKernel::MeetingKernel(tensorflow::OpKernelConstruction* construction)
    : AsyncOpKernel(construction) {
  if (!construction->HasAttr("_tfembed_replicas")) return;
  OP_REQUIRES_OK(construction,
                 construction->GetAttr("_tfembed_replicas", &replicas_));
  OP_REQUIRES_OK(construction,
                 construction->GetAttr("_tfembed_replica", &replica_));
  OP_REQUIRES_OK(construction, construction->GetAttr("_tfembed_key", &key_));
  OP_REQUIRES(construction, 0 <= replica_ && replica_ < replicas_,
              absl::InvalidArgumentError("The replica is not among them all."));
}

absl::Status MeetingKernel::ComputeWithinMemory(Contexts replicas) const {
  return GuardMemory([&] { return Compute(replicas); },
                     [&] { return NoMemoryFor(*this); });
}

void MeetingKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  if (replicas_ == 1) {
    OP_REQUIRES_OK_ASYNC(context, ComputeWithinMemory({&context, 1}), done);
    done();
    return;
  }
  std::vector<OpKernelContext*> contexts;
  Meetings::Calls calls;
  try {
    contexts.reserve(replicas_);
    auto call = std::make_shared<MeetingCall>();
    call->context = context;
    call->done = done;
    call->manager = context->cancellation_manager();
    // Functions that are called, rather than inlined, have a step of their own,
    // of a random negative number.
    Meet({std::max<int64_t>(context->step_id(), -1), key_,
          context->frame_iter().iter_id},
         replicas_, replica_, call, &calls);
  } catch (const std::bad_alloc&) {
    context->SetStatus(NoMemoryFor(*this));
    done();
    return;
  }
  if (calls.empty()) return;
  for (const MeetingCallPtr& one : calls) contexts.push_back(one->context);
  const absl::Status status = ComputeWithinMemory(contexts);
  for (const MeetingCallPtr& one : calls) {
    if (one->manager != nullptr) one->manager->DeregisterCallback(one->token);
    if (!status.ok()) one->context->SetStatus(status);
    one->done();
  }
}

}  // namespace tfembed
