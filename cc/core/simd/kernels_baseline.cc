#define TFEMBED_SIMD_NAMESPACE baseline
#include "cc/core/simd/kernels.inc"
