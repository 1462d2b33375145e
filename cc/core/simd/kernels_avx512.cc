#define TFEMBED_SIMD_NAMESPACE avx512
#include "cc/core/simd/kernels.inc"
