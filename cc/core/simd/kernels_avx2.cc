#define TFEMBED_SIMD_NAMESPACE avx2
#include "cc/core/simd/kernels.inc"
