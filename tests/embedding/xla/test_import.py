"""When tfembed may be imported by a program that XLA compiles."""

from __future__ import annotations

import subprocess
import sys

from embedding.marks import NEEDS_XLA

pytestmark = NEEDS_XLA

PROGRAM = """
import tensorflow as tf

tf.function(lambda: tf.constant(1) + 1, jit_compile=True)()

from tfembed.ops import exchange

@tf.function(jit_compile=True)
def look_up(values, ids):
    one = exchange.Exchange.for_ids(1, 2)
    return exchange.lookup(values, ids, one).rows

print(look_up(tf.constant([[1.0], [2.0]]), tf.constant([1, 0])).numpy().tolist())
"""


def test_kernels_are_found_though_xla_compiled_something_before():
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True
    )

    assert result.stdout == "[[2.0], [1.0]]\n", result.stderr
