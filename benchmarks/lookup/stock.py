"""TensorFlow alone: embedding_lookup_sparse and sparse Adagrad.

With AMD's plug-in zentf beside it, its graphs run by other kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2,
)

from benchmarks.lookup import contender, inputs
from benchmarks.lookup.contender import Contender, Round
from benchmarks.lookup.workload import Batch, Tables

_COPIED_ROWS = 4_000  # Few enough not to matter.


class Stock(Contender):
    """26 lookups; gradients are summed by id first, as its optimizers do."""

    forms = ("loop", "call sparse", "call ragged")

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        shape = (tables.rows, tables.width)
        self._values = [
            tf.Variable(tf.fill(shape, contender.VALUE))
            for _ in range(tables.count)
        ]
        if tables.rule:
            self._slots = [
                tf.Variable(tf.fill(shape, contender.FIRST_ACCUMULATOR))
                for _ in range(tables.count)
            ]

    def has(self, form: str, *, train: bool) -> bool:
        # In a loop, TensorFlow copies variables that were trained.
        copies = form == "loop" and train and self.tables.rows > _COPIED_ROWS
        return super().has(form, train=train) and not copies

    def rounds(
        self, batches: Sequence[Batch], form: str, *, train: bool
    ) -> Round:
        size = batches[0].size
        gradient = [tf.constant(one) for one in self.gradient(size)]

        def step(features: Any) -> list[tf.Tensor]:
            if train:
                return self._train(features, gradient)
            return self._look_up(features)

        if form == "loop":
            return inputs.loop(step, inputs.sparse_at(batches), len(batches))
        make = inputs.ragged if form.endswith("ragged") else inputs.sparse
        sent = [make(batch) for batch in batches]
        return inputs.calls(inputs.traced(step), sent)

    def values(self) -> np.ndarray:
        return np.stack([one.numpy() for one in self._values])

    def _look_up(self, features: Sequence[Any]) -> list[tf.Tensor]:
        return [
            tf.nn.embedding_lookup_sparse(table, one, None, combiner="mean")
            for table, one in zip(self._values, features)
        ]

    def _train(
        self, features: Sequence[Any], gradient: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            out = self._look_up(features)
        every = tape.gradient(out, self._values, gradient)
        for values, slots, one in zip(self._values, self._slots, every):
            ids, segments = tf.unique(one.indices)
            sums = tf.math.unsorted_segment_sum(
                one.values, segments, tf.size(ids)
            )
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=values.handle,
                accum=slots.handle,
                lr=contender.LEARNING_RATE,
                epsilon=contender.EPSILON,
                grad=sums,
                indices=ids,
            )
        return out


class Safe(Stock):
    """26 safe_embedding_lookup_sparse, which zentf fuses; lookups only."""

    forms = ("loop", "call sparse")

    def _look_up(self, features: Sequence[Any]) -> list[tf.Tensor]:
        return [
            tf.nn.safe_embedding_lookup_sparse(
                table, one, None, combiner="mean"
            )
            for table, one in zip(self._values, features)
        ]


class Frozen(Safe):
    """The same as a frozen graph, whose tables are constants; calls alone."""

    forms = ("call sparse",)

    def rounds(
        self, batches: Sequence[Batch], form: str, *, train: bool
    ) -> Round:
        sent = [inputs.sparse(batch) for batch in batches]
        flat = [tf.nest.flatten(one, expand_composites=True) for one in sent]
        specs = [
            tf.TensorSpec([None] * one.shape.rank, one.dtype) for one in flat[0]
        ]

        @tf.function(input_signature=specs, autograph=False)
        def step(*parts: tf.Tensor) -> list[tf.Tensor]:
            features = tf.nest.pack_sequence_as(
                sent[0], parts, expand_composites=True
            )
            return self._look_up(features)

        frozen = convert_variables_to_constants_v2(step.get_concrete_function())
        return inputs.calls(lambda parts: frozen(*parts), flat)
