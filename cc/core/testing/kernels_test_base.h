#ifndef TFEMBED_CORE_TESTING_KERNELS_TEST_BASE_H_
#define TFEMBED_CORE_TESTING_KERNELS_TEST_BASE_H_

#include <tuple>
#include <type_traits>

#include "cc/core/simd/dispatch.h"
#include "gtest/gtest.h"

namespace tfembed {

// A test with the kernels that its parameter, or the first of its parameters,
// names; skipped where the processor cannot run them.
template <typename Param>
class KernelsTestBase : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    const Kernels* kernels = FindKernels(Name());
    if (kernels == nullptr) GTEST_SKIP() << "This processor cannot run them.";
    SetActiveKernels(*kernels);
  }
  void TearDown() override { SetActiveKernels(before_); }

 private:
  const char* Name() const {
    if constexpr (std::is_same_v<Param, const char*>) {
      return this->GetParam();
    } else {
      return std::get<0>(this->GetParam());
    }
  }

  const Kernels& before_ = ActiveKernels();
};

}  // namespace tfembed

#endif  // TFEMBED_CORE_TESTING_KERNELS_TEST_BASE_H_
