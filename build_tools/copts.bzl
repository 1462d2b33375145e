"""Compiler flags of the project's own code. Optimization is in .bazelrc."""

_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Wno-sign-compare",
    "-Wno-deprecated-declarations",  # Each TensorFlow version has its own.
    "-Werror=return-type",
    "-Werror=uninitialized",
    "-Werror=unused-result",
    "-Werror=format",
    "-Werror=switch",
    "-Werror=reorder",
    "-Werror=non-virtual-dtor",
    "-Werror=overloaded-virtual",
]

_X86_64_V2 = ["-mcx16", "-msahf", "-mpopcnt", "-msse4.2"]

_AVX2 = ["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mlzcnt", "-mf16c"]

_AVX512 = _AVX2 + [
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
    # GCC 12 warns inside its own AVX-512 intrinsics.
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]

def _copts(x86_64_flags):
    return _WARNINGS + select({
        "@platforms//cpu:x86_64": x86_64_flags,
        "//conditions:default": [],
    })

# What ships runs on every x86-64-v2 machine; the wider instruction sets are for
# cc/core/simd alone, which picks one at run time.
COPTS = _copts(_X86_64_V2)
AVX2_COPTS = _copts(_X86_64_V2 + _AVX2)
AVX512_COPTS = _copts(_X86_64_V2 + _AVX512)
