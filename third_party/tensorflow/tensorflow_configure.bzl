"""Makes the installed TensorFlow wheel's headers and library a repository.

The wheel is that of $PYTHON, else of this checkout's .venv, else of python3.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

# The part of the wheel that cc/core may use: absl, headers and symbols. What
# takes the headers alone needs no library of TensorFlow.
cc_library(
    name = "absl_headers",
    hdrs = glob(["include/absl/**"]),
    defines = {defines},
    includes = ["include"],
)

cc_library(
    name = "absl",
    srcs = ["libtensorflow_framework.so.2"],
    deps = [":absl_headers"],
)

# What ops and CPU kernels need: the framework headers and its library.
cc_library(
    name = "framework",
    hdrs = glob(
        ["include/**"],
        exclude = ["include/absl/**", "include/external/**"],
    ),
    deps = [":absl"],
)

# What XLA kernels need beside it: TensorFlow's compiler.
cc_library(
    name = "xla",
    srcs = ["libtensorflow_cc.so.2"],
    deps = [":framework"],
)
"""

def _find_python(repository_ctx):
    python = repository_ctx.os.environ.get("PYTHON")
    if python:
        return python
    workspace = repository_ctx.path(Label("@tfembed//:WORKSPACE")).dirname
    venv = workspace.get_child(".venv").get_child("bin").get_child("python")
    return str(venv) if venv.exists else "python3"

def _tensorflow_configure_impl(repository_ctx):
    python = _find_python(repository_ctx)
    finder = repository_ctx.path(
        Label("@tfembed//build_tools:find_tensorflow.py"),
    )
    result = repository_ctx.execute([python, "-I", str(finder)])
    if result.return_code:
        fail("%sSet PYTHON to an interpreter that has TensorFlow." % result.stderr)
    found = json.decode(result.stdout)
    for name in [
        "include",
        "libtensorflow_cc.so.2",
        "libtensorflow_framework.so.2",
    ]:
        repository_ctx.symlink(found["root"] + "/" + name, name)
    defines = [
        "_GLIBCXX_USE_CXX11_ABI=%d" % (1 if found["cxx11_abi"] else 0),
        "EIGEN_MAX_ALIGN_BYTES=64",
    ]
    repository_ctx.file("BUILD", _BUILD.format(defines = repr(defines)))

tensorflow_configure = repository_rule(
    implementation = _tensorflow_configure_impl,
    environ = ["PYTHON"],
    local = True,
)
