// The loops of Kernels. BUILD compiles this file once per instruction set, each
// time with a namespace of its own, TFEMBED_SIMD_NAMESPACE; vector.h says what
// may not be used here.

#pragma GCC optimize("O3,no-math-errno,fp-contract=off")

#include <cstdint>

#include "absl/base/attributes.h"
#include "cc/core/optimizers/formula.h"
#include "cc/core/optimizers/rules.inc"
#include "cc/core/simd/dispatch.h"
#include "cc/core/simd/vector.h"
#include "cc/core/support/prefetch.h"

namespace tfembed {
namespace TFEMBED_SIMD_NAMESPACE {
namespace {

// All in this namespace.
#include "cc/core/simd/apply.inc"
#include "cc/core/simd/find.inc"
#include "cc/core/simd/pool.inc"
#include "cc/core/simd/read.inc"
#include "cc/core/simd/write.inc"

// x - x is 0, or NaN where x is not finite.
bool AllFinite(const float* x, int64_t n) {
  Vec differences = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = Load(x + i);
    differences += v - v;
  }
  if (i < n) {
    const Vec v = LoadFirst(x + i, n - i);
    differences += v - v;
  }
  float sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += differences[lane];
  return sum == 0;
}

// The loop of a rule: by rows where the formula has a rate of its own per row.
template <class Rule, int kSlots = Rule::kRowRateSlots>
constexpr ApplyFunction<Rule> ApplyOf(int) {
  return &ApplyRowWise<Rule>;
}
template <class Rule>
constexpr ApplyFunction<Rule> ApplyOf(long) {
  return &Apply<Rule>;
}

#define TFEMBED_STRING(x) #x
#define TFEMBED_NAME(x) TFEMBED_STRING(x)

const Kernels kKernels = {
    TFEMBED_NAME(TFEMBED_SIMD_NAMESPACE),
    &Pool,
    &DealKeys,
    &AskForHomes,
    &FindAtHomes,
    &StreamRows,
    &AllFinite,
    kStreamsOldRows,
    &CopyRows,
    &AddRows,
#define TFEMBED_RULE(name, Type) ApplyOf<Type>(0),
#include "cc/core/optimizers/rules.inc"
};

}  // namespace

const Kernels& GetKernels();
const Kernels& GetKernels() { return kKernels; }

}  // namespace TFEMBED_SIMD_NAMESPACE
}  // namespace tfembed
