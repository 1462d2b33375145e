#ifndef TFEMBED_CORE_SUPPORT_DECAY_H_
#define TFEMBED_CORE_SUPPORT_DECAY_H_

namespace tfembed {

// How much of a mean stays in a step, and how much of what comes is added. Both
// are rounded once: 1 - 0.999f is off by 1e-5. Plain data: files of every
// instruction set include it.
struct Decay {
  explicit constexpr Decay(double kept)
      : kept(static_cast<float>(kept)), added(static_cast<float>(1 - kept)) {}

  float kept;
  float added;
};

// kept * mean + (1 - kept) * next.
template <class V>
static inline V Mean(const Decay& decay, const V& mean, const V& next) {
  return decay.kept * mean + decay.added * next;
}

}  // namespace tfembed

#endif  // TFEMBED_CORE_SUPPORT_DECAY_H_
