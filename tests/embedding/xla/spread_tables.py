"""Tables of V0 whose rows are spread over replicas on paper, and their steps."""

from __future__ import annotations

import keras
import tensorflow as tf

import tfembed
from dynamic_embedding.optimizer_makers import legacy
from proof import v0_traces

REPLICAS = 4
v1 = tf.compat.v1.train
OPTIMIZERS = {
    "keras sgd": keras.optimizers.SGD,
    "keras momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "keras adagrad": keras.optimizers.Adagrad,
    "keras adam of a schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    ),
    "keras adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.01),
    "keras ftrl": keras.optimizers.Ftrl,
    "keras nadam": keras.optimizers.Nadam,
    "keras rmsprop": keras.optimizers.RMSprop,
    "v1 sgd": lambda: v1.GradientDescentOptimizer(0.1),
    "v1 adagrad": lambda: v1.AdagradOptimizer(0.1),
    "v1 adam": lambda: v1.AdamOptimizer(0.1),
    "v1 momentum": lambda: v1.MomentumOptimizer(0.1, 0.9),
    "v1 ftrl": lambda: v1.FtrlOptimizer(0.1),
    "legacy adagrad": lambda: legacy().Adagrad(0.1),
    "legacy adam": lambda: legacy().Adam(0.1),
    "legacy nadam": lambda: legacy().Nadam(0.1),
}


def embedding(strategy, optimizer=None, **arguments):
    with strategy.scope():
        tables = [
            tfembed.TableConfig(10, 8, name="users"),
            tfembed.TableConfig(7, 8, name="items", combiner="sum"),
            tfembed.TableConfig(9, 4, name="narrow"),
        ]
        return tfembed.TPUEmbeddingV0(
            [tfembed.FeatureConfig(table) for table in tables],
            optimizer,
            **{"engine": "xla", **arguments},
        )


def tables(embedding):
    return {table.name: table for table in embedding.trainable_variables}


def look_up(embedding):
    ids = tf.constant([1, 9, -1])
    ragged = tf.RaggedTensor.from_row_splits(
        tf.constant([1, 1, 2, 6, 0, 0]), [0, 2, 2, 4], validate=False
    )
    return embedding([ids, ragged, tf.constant([[8, 0], [3, 3], [1, 1]])])


def trace(strategy, step):
    @tf.function
    def run():
        return strategy.run(step)

    return list(v0_traces.operations(run.get_concrete_function().graph))
