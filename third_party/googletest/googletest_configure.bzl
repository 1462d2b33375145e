"""Makes Debian's googletest source (/usr/src/googletest) a repository.

Source, not the static library, so that sanitizers see through it.
"""

_SOURCE = "/usr/src/googletest"

_BUILD = """
cc_library(
    name = "gtest_main",
    testonly = True,
    srcs = glob(
        ["googletest/src/*.cc", "googlemock/src/*.cc"],
        exclude = [
            "googletest/src/gtest-all.cc",
            "googletest/src/gtest_main.cc",
            "googlemock/src/gmock-all.cc",
        ],
    ) + glob(["googletest/src/*.h"]),
    hdrs = glob(["googletest/include/**", "googlemock/include/**"]),
    copts = ["-w", "-Iexternal/googletest/googletest"],
    includes = ["googletest/include", "googlemock/include"],
    linkopts = ["-pthread"],
    visibility = ["//visibility:public"],
)
"""

def _googletest_configure_impl(repository_ctx):
    if not repository_ctx.path(_SOURCE + "/googlemock/src").exists:
        fail("The C++ tests need googletest's source in %s. " % _SOURCE +
             "Install it: apt-get install googletest")
    for name in ["googletest", "googlemock"]:
        repository_ctx.symlink(_SOURCE + "/" + name, name)
    repository_ctx.file("BUILD", _BUILD)

googletest_configure = repository_rule(
    implementation = _googletest_configure_impl,
    local = True,
)
