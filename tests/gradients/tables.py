"""Every kind of table behind one small interface, and a dense variable.

A `Table` looks ids up, says what a tape differentiates for, and takes a step of
SGD. What TPUEmbedding and HashTable hand out is no source by itself: a tape
watches the rows that came out, and the step is told their gradient.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de

DIM, SIZE, RATE = 2, 8, 0.25
ROWS = np.arange(1, 1 + SIZE * DIM, dtype=np.float32).reshape(SIZE, DIM) / 8
IDS = [3, 1, 3, 7]  # One of them twice.
ASKED = (IDS, [i - 1 for i in IDS])  # By the first lookup, and a second.


def rows_of(shape, dtype=tf.float32):
    """The initializer of tables with a vocabulary."""
    assert list(shape) == [SIZE, DIM]
    return tf.constant(ROWS, dtype)


class Table:
    """A table with the rows `ROWS`.

    Attributes:
      sources: what a tape differentiates for.
      takes_rows: whether that is the rows that came out, instead.
      tangent_shape: of a tangent for a source.
    """

    takes_rows = False
    tangent_shape = ROWS.shape

    def __init__(self):
        self.sources = []

    def look_up(self, ids):
        """The rows of ids [n], [n, DIM]."""
        raise NotImplementedError

    def apply(self, gradients):
        """A step of SGD, with a gradient for each source."""
        raise NotImplementedError

    def rows(self):
        """All rows, as NumPy."""
        raise NotImplementedError


class Dense(Table):
    """The table that all others are compared with."""

    def __init__(self):
        self.variable = tf.Variable(ROWS)
        self.sources = [self.variable]

    def look_up(self, ids):
        return tf.gather(self.variable, ids)

    def apply(self, gradients):
        for gradient in gradients:
            self.variable.assign_sub(RATE * tf.convert_to_tensor(gradient))

    def rows(self):
        return self.variable.numpy()


class DenseRows(Dense):
    """The table that others which take rows are compared with."""

    takes_rows = True

    def apply(self, gradients):
        for asked, gradient in zip(ASKED, gradients, strict=False):
            slices = tf.IndexedSlices(
                RATE * gradient, tf.constant(asked, tf.int64)
            )
            self.variable.scatter_sub(slices)


def filled(name="table", keys=None, **options):
    """A `Variable` whose keys are numbers, or their text."""
    keys = tf.range(SIZE, dtype=tf.int64) if keys is None else keys
    v = de.Variable(
        key_dtype=keys.dtype,
        dim=DIM,
        name=name,
        devices=["/CPU:0"] * 2,
        initializer=0.0,
        **options,
    )
    v.upsert(keys, ROWS)
    return v


class Grown(Table):
    """A `Variable`, by one of the lookups."""

    def __init__(self, look_up=None):
        self.v = filled()
        self.sources = [self.v]
        self.fetch = look_up or (
            lambda v, ids: de.embedding_lookup(v, ids, name="x")
        )
        self.optimizer = de.DynamicEmbeddingOptimizer(
            tf.keras.optimizers.SGD(RATE)
        )

    def look_up(self, ids):
        return self.fetch(self.v, tf.cast(ids, tf.int64))

    def apply(self, gradients):
        self.optimizer.apply_gradients(
            zip(gradients, self.sources, strict=True)
        )

    def rows(self):
        return self.v.lookup(tf.range(SIZE, dtype=tf.int64)).numpy()


def _bags(ids):
    return tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids))


def _of_each(ids, rows):
    """Tells tf.scan how many rows there are, which no SparseTensor does."""
    return tf.ensure_shape(rows, ids.shape.concatenate(DIM))


def _sparse(v, ids):
    rows = de.embedding_lookup_sparse(
        v, _bags(ids).to_sparse(), None, combiner="sum", name="x"
    )
    return _of_each(ids, rows)


def _safe(v, ids):
    rows = de.safe_embedding_lookup_sparse(
        v, _bags(ids).to_sparse(), combiner="sum", name="x"
    )
    return _of_each(ids, rows)


def _ragged(v, ids):
    from tfembed.dynamic_embedding import ragged_embedding_ops

    return ragged_embedding_ops.embedding_lookup_sparse(
        v, _bags(ids), None, combiner="sum", name="x"
    )


def _unique(v, ids):
    return de.embedding_lookup_unique(v, ids, name="x")


class Strings(Grown):
    """A `Variable` whose keys are strings."""

    def __init__(self):
        super().__init__()
        self.keys = tf.constant([str(i) * (i + 1) for i in range(SIZE)])
        self.v = filled("words", self.keys)
        self.sources = [self.v]

    def look_up(self, ids):
        return de.embedding_lookup(self.v, tf.gather(self.keys, ids), name="x")

    def rows(self):
        return self.v.lookup(self.keys).numpy()


class Shadow(Grown):
    """A `ShadowVariable`."""

    def __init__(self):
        super().__init__()
        self.shadow = de.shadow_ops.ShadowVariable(self.v, name="shadow")
        self.sources = [self.shadow]

    def look_up(self, ids):
        return de.shadow_ops.embedding_lookup(
            self.shadow, tf.cast(ids, tf.int64)
        )


class Wrapper(Grown):
    """The wrapper of return_trainable=True: one for all lookups of a name."""

    def __init__(self):
        super().__init__()
        ids = tf.constant(IDS, tf.int64)
        _, wrapper = de.embedding_lookup(
            self.v, ids, name="x", return_trainable=True
        )
        self.sources = [wrapper]

    def look_up(self, ids):
        rows, _ = de.embedding_lookup(
            self.v, tf.cast(ids, tf.int64), name="x", return_trainable=True
        )
        return rows


class Hashed(Table):
    """A `HashTable`, whose step takes ids and the gradient of their rows."""

    takes_rows = True

    def __init__(self):
        self.table = tfembed.tables.HashTable(DIM, name="hashed")
        self.table.upsert(tf.range(SIZE, dtype=tf.int64), ROWS)
        self.table.attach(tfembed.SGD(RATE))

    def look_up(self, ids):
        rows, _ = self.table.lookup(tf.cast(ids, tf.int64))
        return rows

    def apply(self, gradients):
        for asked, gradient in zip(ASKED, gradients, strict=False):
            keys = tf.constant(asked, tf.int64)
            self.table.apply_gradients(keys, gradient, RATE)

    def rows(self):
        return self.table.lookup(tf.range(SIZE, dtype=tf.int64))[0].numpy()


def _features(vocabulary=SIZE):
    arguments = {"initializer": rows_of} if vocabulary else {"seed": 3}
    table = tfembed.TableConfig(vocabulary, DIM, name="rows", **arguments)
    return tfembed.FeatureConfig(table)


class Steps(Table):
    """`TPUEmbedding`: enqueue, dequeue, apply_gradients."""

    takes_rows = True

    def __init__(self):
        self.embedding = tfembed.TPUEmbedding(_features(), tfembed.SGD(RATE))
        self.embedding.build(len(IDS))

    def look_up(self, ids):
        self.embedding.enqueue(ids)
        return self.embedding.dequeue()

    def apply(self, gradients):
        for gradient in gradients:
            self.embedding.apply_gradients(gradient)

    def rows(self):
        (table,) = self.embedding.embedding_tables.values()
        return table.numpy()


class V0(Table):
    """`TPUEmbeddingV0` with a vocabulary, and an optimizer of Keras."""

    def __init__(self):
        self.embedding = tfembed.TPUEmbeddingV0(_features(), None)
        self.sources = self.embedding.trainable_variables
        self.optimizer = tf.keras.optimizers.SGD(RATE)
        self.optimizer.build(self.sources)

    def look_up(self, ids):
        return self.embedding(ids)

    def apply(self, gradients):
        pairs = zip(gradients, self.sources, strict=True)
        self.optimizer.apply_gradients(list(pairs))

    def rows(self):
        return self.sources[0].numpy()


class GrownV0(Grown):
    """`TPUEmbeddingV0` without one."""

    def __init__(self):
        super().__init__()
        self.embedding = tfembed.TPUEmbeddingV0(_features(None), None)
        self.sources = self.embedding.trainable_variables
        (self.v,) = self.sources
        self.v.upsert(tf.range(SIZE, dtype=tf.int64), ROWS)

    def look_up(self, ids):
        return self.embedding(ids)


class TableLayer(Grown):
    """A layer of `dynamic_embedding.keras`, by its weight, shadow or table."""

    def __init__(self, source):
        super().__init__()
        self.layer = de.keras.layers.Embedding(DIM, name="layer")
        self.v = self.layer.params
        self.v.upsert(tf.range(SIZE, dtype=tf.int64), ROWS)
        self.sources = {
            "weight": lambda: self.layer.trainable_weights,
            "shadow": lambda: [self.layer.shadow],
            "params": lambda: [self.layer.params],
        }[source]()

    def look_up(self, ids):
        return self.layer(ids)


class DistributedLayer(Table):
    """`keras.layers.DistributedEmbedding`, with an optimizer of its own."""

    tangent_shape = (256,)

    def __init__(self):
        self.layer = tfembed.keras.layers.DistributedEmbedding(
            _features(), tfembed.SGD(RATE), name="layer"
        )
        self.sources = self.layer.trainable_weights
        self.optimizer = keras.optimizers.SGD(0.0)
        self.optimizer.build(self.sources)

    def look_up(self, ids):
        return self.layer(ids)

    def apply(self, gradients):
        self.optimizer.apply(gradients, self.sources)

    def rows(self):
        (table,) = self.layer.get_embedding_tables().values()
        return table.numpy()


KINDS = {
    "embedding_lookup": Grown,
    "embedding_lookup_unique": lambda: Grown(_unique),
    "embedding_lookup_sparse": lambda: Grown(_sparse),
    "safe_embedding_lookup_sparse": lambda: Grown(_safe),
    "ragged_embedding_ops": lambda: Grown(_ragged),
    "string keys": Strings,
    "ShadowVariable": Shadow,
    "TrainableWrapper": Wrapper,
    "HashTable": Hashed,
    "TPUEmbedding": Steps,
    "TPUEmbeddingV0": V0,
    "TPUEmbeddingV0, growing": GrownV0,
    "Keras Embedding, weight": lambda: TableLayer("weight"),
    "Keras Embedding, shadow": lambda: TableLayer("shadow"),
    "Keras Embedding, params": lambda: TableLayer("params"),
    "DistributedEmbedding": DistributedLayer,
}
