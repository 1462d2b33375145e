"""TPUEmbeddingV0 under MirroredStrategy, tables without a vocabulary included."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed
import tfembed.dynamic_embedding as de

REPLICAS = 2
# A process of its own: collectives of several strategies share their keys.
UNBUILT = """
    import sys

    import keras
    import tensorflow as tf

    import tfembed

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 4,
    )
    strategy = tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(int(sys.argv[1]))]
    )

    def trained(name):
        with strategy.scope():
            config = tfembed.TableConfig(5, 2, tf.ones_initializer(), name="t")
            embedding = tfembed.TPUEmbeddingV0(
                tfembed.FeatureConfig(config), None
            )
            optimizer = getattr(keras.optimizers, name)(0.5)
        (table,) = embedding.trainable_variables

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(embedding(tf.constant([1, 3])) ** 2)
            gradient = tape.gradient(loss, table)
            embedding.apply_optimizer(optimizer, [(gradient, table)])

        for _ in range(2):
            strategy.run(step)
        return (table.numpy()[[1, 3]] != 1).all()

    for name in sys.argv[2:]:
        assert trained(name), name
    print("trained")
"""


def trained(strategy, batches):
    """Tables with and without a vocabulary after one step for each batch."""
    with strategy.scope():
        configs = {
            name: tfembed.TableConfig(
                size, 2, tf.constant_initializer(1.0), name=name
            )
            for name, size in (("any id", None), ("ten ids", 10))
        }
        features = {k: tfembed.FeatureConfig(v) for k, v in configs.items()}
        embedding = tfembed.TPUEmbeddingV0(features, None)
        embedding.build()
        optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adagrad(0.1))
    tables = list(embedding.embedding_tables.values())

    def step(ids):
        with tf.GradientTape() as tape:
            found = embedding(dict.fromkeys(configs, ids))
            loss = tf.add_n([tf.reduce_sum(x**2) for x in found.values()])
        gradients = tape.gradient(loss, tables)
        embedding.apply_optimizer(
            optimizer, list(zip(gradients, tables, strict=True))
        )

    def share(batch, context):
        parts = np.split(batch, strategy.num_replicas_in_sync)
        return tf.constant(parts[context.replica_id_in_sync_group])

    for batch in batches:
        shares = strategy.experimental_distribute_values_from_function(
            lambda context, batch=batch: share(batch, context)
        )
        strategy.run(step, (shares,))
    rows, exist = tables[0].lookup(
        tf.range(10, dtype=tf.int64), return_exists=True
    )
    return rows.numpy(), exist.numpy(), tables[1].numpy()


def test_replicas_train_as_one_does():
    rng = np.random.default_rng(5)
    batches = rng.integers(0, 8, [4, 12])
    together = tf.distribute.MirroredStrategy(
        [f"/CPU:{i}" for i in range(REPLICAS)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )

    expected = trained(tf.distribute.get_strategy(), batches)
    found = trained(together, batches)

    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert expected[1].sum() == len(np.unique(batches))


@pytest.mark.slow  # A process per strategy, with two functions for each optimizer.
@pytest.mark.parametrize("replicas", [2, 4])
def test_a_function_of_several_replicas_trains_by_an_unbuilt_optimizer(
    replicas,
):
    """An optimizer of Keras 3 that builds itself there fails, in collectives."""
    names = ["Adagrad", "Adam", "Ftrl", "RMSprop"]
    assert "trained" in fresh_process.output_of(UNBUILT, replicas, *names)
