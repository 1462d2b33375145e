"""TPUEmbeddingV0's program with whole tables, lowered for a TPU without one.

Run by a Python that has tensorflow-tpu; prints ok. The bridge lowers functions of
tensors alone, so the tables are arguments, and the step is of plain SGD.
"""

import tensorflow as tf

import tfembed
from tfembed.embedding.lookups.static_lookup import (
    look_up_static,
    rows_of_whole_tables,
)

users = tfembed.TableConfig(40, 8, name="users")
items = tfembed.TableConfig(60, 8, name="items", combiner="sqrtn")
features = [
    ("user", tfembed.FeatureConfig(users)),
    ("liked", tfembed.FeatureConfig(items)),
    ("last", tfembed.FeatureConfig(items, max_sequence_length=3)),
]


@tf.function(
    jit_compile=True,
    input_signature=[
        tf.TensorSpec([40, 8]),
        tf.TensorSpec([60, 8]),
        tf.TensorSpec([4], tf.int32),
        tf.TensorSpec([9], tf.int32),
        tf.TensorSpec([9], tf.float32),
        tf.TensorSpec([9, 2], tf.int64),
        tf.TensorSpec([7], tf.int32),
        tf.TensorSpec([5], tf.int64),
    ],
)
def step(of_users, of_items, user, liked, weights, liked_at, last, splits):
    values = [
        user,
        tf.SparseTensor(liked_at, liked, [4, 5]),
        tf.RaggedTensor.from_row_splits(last, splits, validate=False),
    ]
    tables = [of_users, of_items]
    with tf.GradientTape() as tape:
        tape.watch(tables)
        found = look_up_static(
            features,
            values,
            [None, values[1].with_values(weights), None],
            rows_of_whole_tables({users: of_users, items: of_items}),
        )
        loss = tf.add_n([tf.reduce_sum(tf.sin(x)) for x in found])
    return [
        tf.tensor_scatter_nd_sub(
            table, slices.indices[:, tf.newaxis], 0.1 * slices.values
        )
        for table, slices in zip(
            tables, tape.gradient(loss, tables), strict=True
        )
    ]


lower = step.experimental_get_compiler_ir(*step.input_signature)
text = lower(stage="stablehlo", platform_name="TPU")
assert "stablehlo.gather" in text, text
assert "stablehlo.scatter" in text, text
print("ok")
