"""Sources that are compiled together, a unit each.

Nine tenths of what a kernel takes to compile are TensorFlow's headers. A unit
includes its sources one after the other, and so reads those headers once. The
sources share an anonymous namespace: a name may stand there once per unit.
"""

def compile_unit(name, srcs):
    """Makes `name`.cc, which includes the sources `srcs` of this package."""
    native.genrule(
        name = name,
        srcs = srcs,
        outs = [name + ".cc"],
        cmd = "for source in $(SRCS); do" +
              " echo \"#include \\\"$$source\\\"\"; done >$@",
    )
