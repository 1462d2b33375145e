"""TFRA 0.8.1: one CuckooHashTable a feature, looked up as its layers do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons as tfra
import tf_keras

from benchmarks.lookup import contender, inputs
from benchmarks.lookup.contender import Contender, Round
from benchmarks.lookup.workload import Batch, Tables

_FILLED = 1 << 18
_de = tfra.dynamic_embedding


class Tfra(Contender):
    """All rows are there; a step is a call of a function."""

    forms = ("call",)

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        self._variables = [
            _de.get_variable(
                f"table_{t}",
                tf.int64,
                tf.float32,
                dim=tables.width,
                devices=["/CPU:0"],
                initializer=contender.VALUE,
                init_size=int(tables.rows * 1.05),
            )
            for t in range(tables.count)
        ]
        self._shadows = [
            _de.shadow_ops.ShadowVariable(variable, name=f"shadow_{t}")
            for t, variable in enumerate(self._variables)
        ]
        self._optimizer = _de.DynamicEmbeddingOptimizer(
            tf_keras.optimizers.legacy.Adagrad(
                contender.LEARNING_RATE,
                initial_accumulator_value=contender.FIRST_ACCUMULATOR,
            )
        )
        rows = tf.fill([_FILLED, tables.width], contender.VALUE)
        for variable in self._variables:
            for first in range(0, tables.rows, _FILLED):
                ids = tf.range(first, min(first + _FILLED, tables.rows))
                variable.upsert(tf.cast(ids, tf.int64), rows[: ids.shape[0]])

    def rounds(
        self, batches: Sequence[Batch], form: str, *, train: bool
    ) -> Round:
        gradient = [tf.constant(one) for one in self.gradient(batches[0].size)]

        def step(features: Any) -> list[tf.Tensor]:
            if train:
                return self._train(features, gradient)
            _de.enable_inference_mode()
            try:
                return self._look_up(features)
            finally:
                _de.enable_train_mode()

        sent = [[_segments(b, f) for f in range(b.features)] for b in batches]
        return inputs.calls(inputs.traced(step), sent)

    def _look_up(self, features: Sequence[Any]) -> list[tf.Tensor]:
        out = []
        for shadow, (ids, segments) in zip(self._shadows, features):
            distinct, places = tf.unique(ids)
            rows = _de.shadow_ops.embedding_lookup(shadow, distinct)
            out.append(tf.sparse.segment_mean(rows, places, segments))
        return out

    def _train(
        self, features: Sequence[Any], gradient: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            out = self._look_up(features)
        gradients = tape.gradient(out, self._shadows, gradient)
        self._optimizer.apply_gradients(zip(gradients, self._shadows))
        return out


def _segments(batch: Batch, f: int) -> tuple[tf.Tensor, tf.Tensor]:
    ids, splits = batch.feature(f)
    segments = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    return tf.constant(ids), tf.constant(segments.astype(np.int32))
