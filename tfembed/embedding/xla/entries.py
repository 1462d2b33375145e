"""A batch's ids as tensors of static shape, for XLA programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.config.quantization_config import quantized
from tfembed.embedding.features.id_checks import check_ids, require_all
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.steps.batch_queue import HOST
from tfembed.ops import FeatureIds, FeaturePlan
from tfembed.ops.private import single_variable

__all__ = [
    "Entries",
    "EntriesForm",
    "XlaInputs",
    "combine",
    "entries_of",
    "entries_of_matrix",
    "entry_gradients",
    "padded",
    "pool",
    "require_known_number",
]

NONE = -1  # The id of an empty position, and the cell of a dropped id.


@dataclasses.dataclass(frozen=True)
class EntriesForm:
    """The static description of a feature's entries.

    Attributes:
      plan: the feature's FeaturePlan.
      cells: the number of rows of its activations: samples, or samples x
        length; 0 for dense ids, which have one cell per id.
      is_dense: whether entry i is in cell i, with a weight of 1.
      has_weights: whether ids have weights; else all weights are 1.
    """

    plan: FeaturePlan
    cells: int
    is_dense: bool
    has_weights: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Entries:
    """The ids of one feature.

    Attributes:
      form: the static description.
      ids: int32 [n], NONE at empty positions.
      cells: int32 [n], NONE for dropped ids; [0] for dense ids.
      weights: float32 [n]; [0] if all are 1.
    """

    form: EntriesForm
    ids: tf.Tensor
    cells: tf.Tensor
    weights: tf.Tensor

    @property
    def flat(self) -> list[tf.Tensor]:
        """Returns the tensors."""
        return [self.ids, self.cells, self.weights]

    def factors(self, combiner: str) -> tf.Tensor:
        """Returns the factor of each row [n] in its cell's sum."""
        weights = (
            self.weights
            if self.form.has_weights
            else tf.ones_like(self.cells, tf.float32)
        )
        weights = tf.where(self.cells >= 0, weights, 0.0)
        if combiner == "sum" or self.form.plan.max_sequence_length:
            return weights
        of_cell = weights if combiner == "mean" else weights * weights
        divisor = tf.math.unsorted_segment_sum(
            of_cell, self.cells, self.form.cells
        )
        if combiner == "sqrtn":
            divisor = tf.sqrt(divisor)
        divisor = tf.gather(divisor, tf.maximum(self.cells, 0))
        return tf.math.divide_no_nan(weights, divisor)


def entries_of(
    ids: FeatureIds, plan: FeaturePlan, vocabulary: int, combiner: str
) -> Entries:
    """Makes the entries of a feature, by ops that XLA can compile.

    Ids of ragged input beyond its last row split are padding. Ids out of bounds
    have no row, and sparse ids that validation prunes have no cell.

    Args:
      ids: the feature's batch.
      plan: the FeaturePlan.
      vocabulary: the vocabulary size of its table.
      combiner: the combiner of its table, "" for a sequence.

    Raises:
      tfembed.errors.ArgumentError: an unknown static batch size.
    """
    is_dense = ids.kind == "dense"
    batch = 0 if is_dense else _batch_size(ids, plan)
    length = plan.max_sequence_length
    form = EntriesForm(
        plan,
        cells=batch * max(length, 1),
        is_dense=is_dense,
        has_weights=ids.weights.shape[0] != 0,
    )
    inside = (ids.ids >= 0) & (ids.ids < vocabulary)
    rows = tf.where(inside, tf.cast(ids.ids, tf.int32), NONE)
    if is_dense:
        return Entries(form, rows, tf.zeros([0], tf.int32), ids.weights)
    weights = ids.weights
    if ids.kind == "sparse":
        sample, position = tf.unstack(tf.cast(ids.rows, tf.int32), 2, axis=1)
        keep = sample >= 0
        if plan.validate:
            keep &= ids.ids >= 0
            if combiner != "sum" and form.has_weights:
                keep &= weights > 0
    else:
        sample, position, keep = _ragged_positions(ids, batch)
    if length:
        keep &= position < length
        sample = sample * length + position
    cells = tf.where(keep, sample, NONE)
    return Entries(form, tf.where(keep, rows, NONE), cells, weights)


def entries_of_matrix(
    ids: tf.Tensor,
    weights: tf.Tensor | None,
    plan: FeaturePlan,
    vocabulary: int,
) -> Entries:
    """Makes the entries of a feature whose samples have equally many ids.

    Args:
      ids: [samples, n], of static shape; ids out of bounds are empty positions.
      weights: float32 of the same shape; None: all are 1.
      plan: the FeaturePlan; a sequence has n positions.
      vocabulary: the vocabulary size of its table.
    """
    samples, n = ids.shape
    length = plan.max_sequence_length
    is_dense = n == 1 and not length and weights is None
    inside = (ids >= 0) & (ids < vocabulary)
    rows = tf.where(inside, tf.cast(ids, tf.int32), NONE)
    cells = tf.range(samples)[:, tf.newaxis]
    if length:
        cells = cells * n + tf.range(n)
    cells = tf.where(inside, cells, NONE)
    empty = tf.zeros([0], tf.int32)
    return Entries(
        EntriesForm(
            plan,
            cells=0 if is_dense else samples * max(length, 1),
            is_dense=is_dense,
            has_weights=weights is not None,
        ),
        tf.reshape(rows, [-1]),
        empty if is_dense else tf.reshape(cells, [-1]),
        tf.zeros([0]) if weights is None else tf.reshape(weights, [-1]),
    )


def padded(entries: Entries, size: tf.Tensor) -> Entries:
    """Pads entries to `size` positions; dense entries stay as they are.

    `size` is at least the number of positions that the entries have.
    """
    if entries.form.is_dense:
        return entries
    missing = tf.cast(size, tf.int32) - tf.size(entries.ids)
    ids, cells = (
        tf.pad(part, [[0, missing]], constant_values=NONE)
        for part in (entries.ids, entries.cells)
    )
    weights = entries.weights
    if entries.form.has_weights:
        weights = tf.pad(weights, [[0, missing]])
    return dataclasses.replace(entries, ids=ids, cells=cells, weights=weights)


def _batch_size(ids: FeatureIds, plan: FeaturePlan) -> int:
    size = tf.get_static_value(ids.batch_size)
    if size is None and ids.kind == "ragged":
        splits = ids.rows.shape[0]
        size = None if splits is None else splits - 1
    if size is None:
        raise errors.ArgumentError(
            f"The batch size of input {plan.name} is not known when the function "
            "is traced, and tables in device memory need it. Batch with "
            "drop_remainder=True, or give the function an input_signature."
        )
    return int(size)


def _ragged_positions(
    ids: FeatureIds, batch: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns each id's sample, its position there, and whether it has one."""
    splits = tf.cast(ids.rows, tf.int32)
    n = tf.size(ids.ids)
    # The sample of an id is the number of inner splits at or before it.
    begins = tf.math.unsorted_segment_sum(
        tf.ones([batch], tf.int32), splits[1:], n + 1
    )
    sample = tf.cumsum(begins)[:-1]
    keep = sample < batch
    sample = tf.where(keep, sample, 0)
    position = tf.range(n) - tf.gather(splits, sample)
    return sample, position, keep


class XlaInputs:
    """Converts batches to entries.

    Outside of compiled functions, sparse and ragged ids are padded to a
    capacity, so that few programs are compiled. The capacity is the size of the
    largest batch so far, rounded up by less than a quarter, or to a multiple of
    16.

    Args:
      plan: the plan of the embedding.
    """

    def __init__(self, plan: EmbeddingPlan) -> None:
        self._plan = plan
        self._capacities: dict[tuple[EntriesForm, ...], Any] = {}

    def traced(
        self, features: Sequence[FeatureIds], plans: Sequence[FeaturePlan]
    ) -> list[Entries]:
        """Makes the entries of features inside of a function that XLA compiles.

        Raises:
          tfembed.errors.ArgumentError: an unknown static number of ids.
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
        """Makes the entries of features, checked and padded on the host.

        Raises:
          tf.errors.InvalidArgumentError: a check of `id_checks.check_ids`
            fails, at run time.
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
        """Returns the variables that functions capture."""
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
    """Raises if the static number of ids, which XLA needs, is not known.

    Args:
      ids: the ids of a feature, in a function that is being traced.
      name: the feature's name in errors.
      otherwise: an alternative for the user, as a sentence.

    Raises:
      tfembed.errors.ArgumentError: the number is not known.
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
    """Gives each id a weight if it is not known whether there are weights."""
    if None not in ids.weights.shape:
        return ids
    weights = tf.cond(
        tf.size(ids.weights) > 0,
        lambda: ids.weights,
        lambda: tf.ones_like(ids.ids, tf.float32),
    )
    return dataclasses.replace(ids, weights=weights)


def _rounded_up(sizes: tf.Tensor) -> tf.Tensor:
    """Rounds up to a multiple of 16, or of 1/8 of the next power of 2."""
    sizes = tf.maximum(sizes, 1)
    bits = tf.math.ceil(tf.math.log(tf.cast(sizes, tf.float64)) / math.log(2.0))
    # A lookup of a few more ids costs less than compiling another program.
    unit = tf.cast(
        tf.pow(tf.constant(2.0, tf.float64), tf.maximum(bits - 3, 4.0)),
        tf.int32,
    )
    return (sizes + unit - 1) // unit * unit


def combine(rows: tf.Tensor, entries: Entries, config: Any) -> tf.Tensor:
    """Returns a feature's activations [cells, dim], or [samples, length, dim].

    Args:
      rows: the rows of the entries.
      entries: the entries of the feature.
      config: the table's TableConfig.
    """
    return pool(quantized(rows, config.quantization_config), entries, config)


def pool(rows: tf.Tensor, entries: Entries, config: Any) -> tf.Tensor:
    """Pools rows without quantizing them."""
    form = entries.form
    if not form.is_dense:
        factors = entries.factors(config.combiner)
        # Not a product: 0 times a non-finite row is not 0.
        terms = tf.where(
            (entries.cells >= 0)[:, tf.newaxis],
            rows * factors[:, tf.newaxis],
            0.0,
        )
        rows = tf.math.unsorted_segment_sum(terms, entries.cells, form.cells)
    length = form.plan.max_sequence_length
    if not length or form.is_dense:
        return rows
    return tf.reshape(rows, [-1, length, config.dim])


def entry_gradients(
    gradient: tf.Tensor, entries: Entries, config: Any
) -> tf.Tensor:
    """Returns the gradients of the entries' rows [n, dim]."""
    gradient = tf.reshape(gradient, [-1, config.dim])
    if entries.form.is_dense:
        return gradient
    factors = entries.factors(config.combiner)
    of_cell = tf.gather(gradient, tf.maximum(entries.cells, 0))
    return of_cell * factors[:, tf.newaxis]
