#ifndef TFEMBED_CORE_POLICIES_ADMISSION_H_
#define TFEMBED_CORE_POLICIES_ADMISSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tfembed {

// Decides which new keys of one stripe training may insert. Not thread-safe:
// the lock of the stripe guards it.
class AdmissionFilter {
 public:
  virtual ~AdmissionFilter() = default;

  // Keeps room to note `keys` more keys, so that Admit cannot fail, until it is
  // given back. ResourceExhausted leaves all as it was.
  virtual absl::Status Reserve(int64_t keys) = 0;
  virtual void Release(int64_t keys) = 0;

  // Notes that a training step has seen a key that the table lacks, and says
  // whether to insert it now. hash is HashKey(key). REQUIRES: Reserve.
  virtual bool Admit(uint64_t hash, int64_t key) = 0;

  // Another way brought the key into the table: it waits no longer.
  virtual void Forget(uint64_t hash, int64_t key) = 0;

  // Returns the answer that Admit would give, and notes nothing.
  virtual bool WouldAdmit(uint64_t hash, int64_t key) const = 0;

  // The keys that wait, and in how many steps each was seen, where each has a
  // counter of its own; none elsewhere.
  using WaitingVisitor = std::function<void(int64_t key, int32_t seen)>;
  virtual int64_t num_waiting() const = 0;
  virtual bool IsWaiting(uint64_t hash, int64_t key) const = 0;
  virtual void ForEachWaiting(const WaitingVisitor& visit) const = 0;

  // Has a key wait that was seen in so many steps, or in more. REQUIRES:
  // Reserve.
  virtual void Wait(uint64_t hash, int64_t key, int32_t seen) = 0;

  // The counters that keys share, as many in each filter of a policy; none
  // where each key has its own.
  virtual absl::Span<uint8_t> shared_counters() { return {}; }
  virtual absl::Span<const uint8_t> shared_counters() const { return {}; }

  // Forgets what was seen of all keys. REQUIRES: nothing is reserved.
  virtual void Clear() = 0;

  virtual int64_t bytes() const = 0;
};

// Makes the filters of a table. Immutable.
class AdmissionPolicy {
 public:
  // From one of these texts. InvalidArgument names the word.
  //
  // "count seen=3": admits a key when it is seen for the third time. Exact, at
  // 17 to 22 bytes for each key that waits. A key that was admitted and then
  // removed begins anew.
  //
  // "bloom seen=3 capacity=1000000 error_rate=0.01": admits a key when it is
  // seen for the third time, or earlier with a probability of at most
  // error_rate while the table has seen no more than `capacity` different keys;
  // never later. It has capacity * ln(1 / error_rate) / ln(2)^2 counters of a
  // byte (9.6 bytes a key for 1 %) and never grows. Counts stay when a key was
  // admitted: one that was removed is admitted again at once.
  static absl::StatusOr<std::unique_ptr<AdmissionPolicy>> Parse(
      absl::string_view text);

  virtual ~AdmissionPolicy() = default;

  // Whether each key has counters of its own, so that WouldAdmit stays true
  // whatever becomes of other keys. A table of bounded size needs that.
  virtual bool is_exact() const = 0;

  // Names the meaning of the shared counters; "" where there are none. The
  // counters of two filters of equal length and name can be exchanged.
  virtual std::string counters_kind() const { return ""; }

  // The filter of one of `num_stripes` stripes that share the keys evenly.
  // ResourceExhausted.
  virtual absl::StatusOr<std::unique_ptr<AdmissionFilter>> NewFilter(
      int num_stripes) const = 0;
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_POLICIES_ADMISSION_H_
