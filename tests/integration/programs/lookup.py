"""Looks up rows of a hash table with the installed tfembed, on the host.

Runs in a fresh process; prints the versions and `ok`.
"""

import numpy as np
import tensorflow as tf

import tfembed

table = tfembed.dynamic_embedding.get_variable("table", dim=3, initializer=7.0)
rows = np.arange(6, dtype=np.float32).reshape(2, 3)
table.upsert(tf.constant([10, -20], tf.int64), tf.constant(rows))
found = table.lookup(tf.constant([-20, 99, 10], tf.int64))

np.testing.assert_array_equal(found, [rows[1], [7.0, 7.0, 7.0], rows[0]])
print("TensorFlow", tf.__version__, "tfembed in", tfembed.__path__[0], "ok")
