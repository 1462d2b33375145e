"""Programs that train a table on several replicas of this machine's CPU."""

from __future__ import annotations

import keras
import tensorflow as tf

import tfembed.dynamic_embedding as de

DIM = 2


def keras_sgd():
    return keras.optimizers.SGD(1.0)


def rows_of(table, keys):
    keys = tf.constant(keys, tf.int64)
    return de.embedding_lookup(table, keys, name="rows")


class Program:
    """A table, a dense variable and an optimizer made under a strategy."""

    def __init__(self, strategy, optimizer, **options):
        self.strategy = strategy
        table_options = {
            key: options.pop(key)
            for key in ("devices", "restrict_policy")
            if key in options
        }
        with strategy.scope():
            self.table = de.Variable(
                dim=DIM, name="table", initializer=1.0, **table_options
            )
            self.dense = tf.Variable([0.5, 0.5])
            self.optimizer = de.DynamicEmbeddingOptimizer(
                optimizer(), **options
            )
        # One function for all steps: TensorFlow traces it for each replica.
        self._traced_body = tf.function(self._body)

    def step(self, keys):
        with tf.GradientTape() as tape:
            rows = de.embedding_lookup(self.table, keys, name="rows")
            loss = tf.reduce_sum(rows * self.dense)
        variables = [self.table, self.dense]
        pairs = zip(tape.gradient(loss, variables), variables, strict=True)
        self.optimizer.apply_gradients(pairs)

    def run(self, batches, in_function=False):
        """A step; `batches` are keys of each replica."""

        def share(context):
            keys = batches[context.replica_id_in_sync_group]
            return tf.constant(keys, tf.int64)

        shares = self.strategy.experimental_distribute_values_from_function(
            share
        )

        (self._traced_body if in_function else self._body)(shares)

    def _body(self, keys):
        self.strategy.run(self.step, (keys,))

    def rows(self):
        keys, values = (x.numpy() for x in self.table.export())
        return dict(zip(keys.tolist(), values.tolist(), strict=True))
