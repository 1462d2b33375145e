"""Batches on their way into programs of static shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.features.id_checks import check_ids, require_all
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.steps.batch_queue import HOST
from tfembed.embedding.xla.entries import (
    Entries,
    EntriesForm,
    entries_of,
    padded,
)
from tfembed.ops import FeatureIds, FeaturePlan
from tfembed.ops.private import single_variable

__all__ = ["XlaInputs", "require_known_number"]


class XlaInputs:
    """Reads batches.

    Outside of compiled functions, sparse and ragged ids are padded to a capacity,
    so that few programs are compiled: that of the largest batch so far, rounded up
    by an eighth at most, or to a multiple of 16.

    Args:
      plan: of the embedding.
    """

    def __init__(self, plan: EmbeddingPlan) -> None:
        self._plan = plan
        self._capacities: dict[tuple[EntriesForm, ...], Any] = {}

    def traced(
        self, features: Sequence[FeatureIds], plans: Sequence[FeaturePlan]
    ) -> list[Entries]:
        """The entries of features inside of a function that XLA compiles.

        Raises:
          tfembed.errors.ArgumentError: a number of ids that is not known.
        """
        for ids, plan in zip(features, plans, strict=True):
            require_known_number(
                ids,
                plan.name,
                "Or call enqueue and dequeue outside of jit_compile=True, where "
                "tfembed pads.",
            )
        return [
            self._entries(ids, plan)
            for ids, plan in zip(features, plans, strict=True)
        ]

    def checked(
        self, features: Sequence[FeatureIds], plans: Sequence[FeaturePlan]
    ) -> list[Entries]:
        """The entries of features, checked and padded on the host.

        Raises (when it runs):
          tf.errors.InvalidArgumentError: `id_checks.check_ids`.
        """
        with tf.device(HOST):
            checks = []
            for ids, plan in zip(features, plans, strict=True):
                checks += check_ids(ids, plan, self._plan.tables[plan.table])
            with tf.control_dependencies([require_all(checks)]):
                entries = [
                    self._entries(_with_weights(ids), plan)
                    for ids, plan in zip(features, plans, strict=True)
                ]
                return self._padded(entries)

    def _entries(self, ids: FeatureIds, plan: FeaturePlan) -> Entries:
        config = self._plan.tables[plan.table]
        return entries_of(ids, plan, config.vocabulary_size, config.combiner)

    def _padded(self, entries: list[Entries]) -> list[Entries]:
        if all(one.form.is_dense for one in entries):
            return entries
        sizes = tf.stack([tf.size(one.ids) for one in entries])
        known = self._capacity(tuple(one.form for one in entries))
        capacities = tf.maximum(known, _rounded_up(sizes))
        known.assign(capacities)
        return [
            padded(one, capacity)
            for one, capacity in zip(
                entries, tf.unstack(capacities, len(entries)), strict=True
            )
        ]

    @property
    def resources(self) -> list[Any]:
        """The variables that functions hold."""
        return list(self._capacities.values())

    def _capacity(self, forms: tuple[EntriesForm, ...]) -> Any:
        if forms not in self._capacities:
            with tf.init_scope(), tf.device(HOST):
                self._capacities[forms] = single_variable(
                    initial_value=tf.zeros([len(forms)], tf.int32),
                    trainable=False,
                    name="capacities",
                )
        return self._capacities[forms]


def require_known_number(ids: FeatureIds, name: str, otherwise: str) -> None:
    """Raises where XLA would compile for a number of ids that nobody knows.

    Args:
      ids: of a feature, in a function that is being traced.
      name: what errors call it.
      otherwise: what else can be done, as a sentence.

    Raises:
      tfembed.errors.ArgumentError: that is so.
    """
    if ids.ids.shape[0] is not None and None not in ids.weights.shape:
        return
    raise errors.ArgumentError(
        f"The number of ids of input {name} is not known when the function is "
        "traced, and XLA compiles for one number. Pad the values to a fixed "
        "number (ragged: beyond the last row split; sparse: by the id -1), give "
        "them to the function as tensors, and make the RaggedTensor or "
        "SparseTensor inside of it, since its arguments lose the number. "
        + otherwise
    )


def _with_weights(ids: FeatureIds) -> FeatureIds:
    """With one weight per id where it is not known whether there are any."""
    if None not in ids.weights.shape:
        return ids
    weights = tf.cond(
        tf.size(ids.weights) > 0,
        lambda: ids.weights,
        lambda: tf.ones_like(ids.ids, tf.float32),
    )
    return dataclasses.replace(ids, weights=weights)


def _rounded_up(sizes: tf.Tensor) -> tf.Tensor:
    """To a multiple of an eighth of the next power of 2, and at least of 16."""
    sizes = tf.maximum(sizes, 1)
    bits = tf.math.ceil(tf.math.log(tf.cast(sizes, tf.float64)) / math.log(2.0))
    # To look up a few ids more takes less than to compile another program.
    unit = tf.cast(
        tf.pow(tf.constant(2.0, tf.float64), tf.maximum(bits - 3, 4.0)),
        tf.int32,
    )
    return (sizes + unit - 1) // unit * unit
