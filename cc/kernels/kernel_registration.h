#ifndef TFEMBED_KERNELS_KERNEL_REGISTRATION_H_
#define TFEMBED_KERNELS_KERNEL_REGISTRATION_H_

#include "cc/core/support/guard_memory.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"

// The macro here registers the kernels of all devices.
namespace tfembed {

// Makes a kernel, whose construction fails where it is refused memory.
template <class Kernel>
tensorflow::OpKernel* MakeKernel(
    tensorflow::OpKernelConstruction* construction) {
  return GuardMemory(
      [&]() -> tensorflow::OpKernel* { return new Kernel(construction); },
      [&] {
        construction->SetStatus(MemoryRefused());
        return nullptr;
      });
}

// REGISTER_KERNEL_BUILDER of a KernelDefBuilder and a class, by MakeKernel. All
// kernels are registered so.
#define TFEMBED_REGISTER_KERNEL(builder, ...) \
  TFEMBED_REGISTER_KERNEL_1(__COUNTER__, builder, __VA_ARGS__)
#define TFEMBED_REGISTER_KERNEL_1(number, builder, ...) \
  TFEMBED_REGISTER_KERNEL_2(number, builder, __VA_ARGS__)
#define TFEMBED_REGISTER_KERNEL_2(number, builder, ...)        \
  static const ::tensorflow::kernel_factory::OpKernelRegistrar \
      tfembed_kernel_##number((builder).Build(), #__VA_ARGS__, \
                              &::tfembed::MakeKernel<__VA_ARGS__>)

}  // namespace tfembed

#endif  // TFEMBED_KERNELS_KERNEL_REGISTRATION_H_
