"""tfembed.TPUEmbedding, with a vocabulary and without, and the ops below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tfembed
from benchmarks.lookup import contender, inputs
from benchmarks.lookup.contender import Contender, Round
from benchmarks.lookup.workload import Batch, Tables
from tfembed import optimizers
from tfembed.embedding.features import packed_features
from tfembed.ops import grouped

_FILLED = 1 << 18  # Rows that are inserted at a time.


class Static(Contender):
    """TPUEmbedding; a step is enqueue, dequeue and apply_gradients."""

    forms = (
        "loop",
        "eager",
        "call",
        "call sparse",
        "call ragged",
        "empty sparse",
        "empty ragged",
    )
    has_vocabulary = True
    moves_to_huge_pages = True

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        configs = [
            tfembed.TableConfig(
                tables.rows if self.has_vocabulary else None,
                tables.width,
                initializer=tf.constant_initializer(contender.VALUE),
                name=f"table_{t}",
            )
            for t in range(tables.count)
        ]
        self._features = [
            tfembed.FeatureConfig(configs[f % tables.count], name=f"f{f}")
            for f in range(tables.features)
        ]
        self._optimizer = _rule(tables.rule)
        self._embedding = tfembed.TPUEmbedding(self._features, self._optimizer)
        self._embedding.build()

    def rounds(
        self, batches: Sequence[Batch], form: str, *, train: bool
    ) -> Round:
        kind = inputs.kind(form)
        size = batches[0].size
        name = f"{kind}_{size}"  # Batches of a name are all alike.
        gradient = [tf.constant(one) for one in self.gradient(size)]

        def step(features: Any) -> list[tf.Tensor]:
            self._embedding.enqueue(features, training=train, name=name)
            activations = self._embedding.dequeue(name=name)
            if train:
                self._embedding.apply_gradients(gradient, name=name)
            return activations

        if form == "loop":
            return inputs.loop(step, packed_at(batches), len(batches))
        if form.startswith("empty"):
            # What TensorFlow takes for a call with such features alone.
            return _calls(lambda features: [tf.zeros([1, 1])], batches, form)
        return _calls(step, batches, form)

    def values(self) -> np.ndarray:
        tables = self._embedding.embedding_tables.values()
        return np.stack([table.numpy() for table in tables])


class Hash(Static):
    """The same with tables that take any id; all rows are there."""

    has_vocabulary = False
    moves_to_huge_pages = False

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        rows = tf.fill([_FILLED, tables.width], contender.VALUE)
        for table in self._embedding.embedding_tables.values():
            for first in range(0, tables.rows, _FILLED):
                ids = tf.range(first, min(first + _FILLED, tables.rows))
                table.upsert(tf.cast(ids, tf.int64), rows[: ids.shape[0]])

    def values(self) -> np.ndarray:
        ids = tf.range(self.tables.rows, dtype=tf.int64)
        tables = self._embedding.embedding_tables.values()
        return np.stack([table.lookup(ids)[0].numpy() for table in tables])


class Ops(Contender):
    """The grouped ops alone: what TPUEmbedding's own steps cost beside them."""

    moves_to_huge_pages = True
    forms = ("loop", "eager", "call", "call sparse", "call ragged")

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        shape = (tables.rows, tables.width)
        self._values = [
            tf.Variable(tf.fill(shape, contender.VALUE))
            for _ in range(tables.count)
        ]
        self._slots = []
        self._rule = _rule(tables.rule)
        if self._rule is not None:
            self._slots = [
                tf.Variable(
                    tf.fill(
                        self._rule.slot_shape("accumulators", shape),
                        contender.FIRST_ACCUMULATOR,
                    )
                )
                for _ in range(tables.count)
            ]
        self._plans = [
            grouped.FeaturePlan(f % tables.count, "mean", validate=False)
            for f in range(tables.features)
        ]

    def rounds(
        self, batches: Sequence[Batch], form: str, *, train: bool
    ) -> Round:
        gradient = [tf.constant(one) for one in self.gradient(batches[0].size)]

        def step(features: Any) -> list[tf.Tensor]:
            if isinstance(features, tfembed.PackedFeatures):
                features, _ = features.unpack()
            ids = [grouped.feature_ids(feature) for feature in features]
            return self._step(ids, gradient, train=train)

        if form == "loop":
            return inputs.loop(step, packed_at(batches), len(batches))
        return _calls(step, batches, form)

    def values(self) -> np.ndarray:
        return np.stack([one.numpy() for one in self._values])

    def _step(
        self, ids: list[Any], gradient: Any, *, train: bool
    ) -> list[tf.Tensor]:
        dims = [self.tables.width] * self.tables.count
        out = grouped.grouped_lookup(self._values, dims, ids, self._plans)
        if train:
            grouped.grouped_update(
                self._values,
                self._slots,
                dims,
                ids,
                self._plans,
                gradient,
                rules=[self._rule.rule_text()] * self.tables.count,
                learning_rates=[contender.LEARNING_RATE] * self.tables.count,
            )
        return out


def packed(batch: Batch) -> tfembed.PackedFeatures:
    """One batch, as `tfembed.pack_features` gives it to `tf.data`."""
    return tfembed.pack_features(inputs.ragged(batch))


def packed_at(batches: Sequence[Batch]) -> Any:
    """Batch i as PackedFeatures, for i in a loop."""
    every = [packed(batch) for batch in batches]
    ids = inputs.Sliced([one.ids.numpy() for one in every])
    rows = inputs.Sliced([one.rows.numpy() for one in every])
    sizes = tf.constant(np.stack([one.sizes.numpy() for one in every]))
    form = every[0].form
    weights = tf.zeros([0])
    return lambda i: packed_features.assemble(
        (ids[i], rows[i], weights, sizes[i]), form
    )


def _calls(step: Any, batches: Sequence[Batch], form: str) -> Round:
    make = {"ragged": inputs.ragged, "sparse": inputs.sparse, "": packed}
    sent = [make[inputs.kind(form)](batch) for batch in batches]
    is_eager = form.startswith("eager")
    return inputs.calls(step if is_eager else inputs.traced(step), sent)


def _rule(name: str) -> Any:
    rules = {
        "adagrad": optimizers.Adagrad,
        "row-wise": optimizers.RowWiseAdagrad,
    }
    if not name:
        return None
    return rules[name](
        contender.LEARNING_RATE,
        initial_accumulator_value=contender.FIRST_ACCUMULATOR,
    )
