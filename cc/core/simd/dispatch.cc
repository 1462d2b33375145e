#include "cc/core/simd/dispatch.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace tfembed {

namespace baseline {
const Kernels& GetKernels();
}
#if defined(__x86_64__)
namespace avx2 {
const Kernels& GetKernels();
}
namespace avx512 {
const Kernels& GetKernels();
}
#endif

namespace {

const Kernels& Widest() {
  for (const char* name : {"avx512", "avx2"}) {
    if (const Kernels* kernels = FindKernels(name)) return *kernels;
  }
  return baseline::GetKernels();
}

const Kernels& Default() {
  const char* name = std::getenv("TFEMBED_SIMD");
  const Kernels* named = name != nullptr ? FindKernels(name) : nullptr;
  return named != nullptr ? *named : Widest();
}

std::atomic<const Kernels*>& Active() {
  static std::atomic<const Kernels*> active{&Default()};
  return active;
}

}  // namespace

const Kernels* FindKernels(const char* name) {
  if (std::strcmp(name, "baseline") == 0) return &baseline::GetKernels();
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (std::strcmp(name, "avx2") == 0 && has_avx2) return &avx2::GetKernels();
  if (std::strcmp(name, "avx512") == 0 && has_avx2 &&
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return &avx512::GetKernels();
  }
#endif
  return nullptr;
}

const Kernels& ActiveKernels() {
  return *Active().load(std::memory_order_relaxed);
}

void SetActiveKernels(const Kernels& kernels) {
  Active().store(&kernels, std::memory_order_relaxed);
}

}  // namespace tfembed
