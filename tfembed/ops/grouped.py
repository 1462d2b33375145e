"""Lookups and updates of all features of a step in one op call each."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfembed.errors import ArgumentError, DtypeError
from tfembed.ops import library, private
from tfembed.ops.gradients import check_forward_mode
from tfembed.ops.ids import as_keys, id_dtypes


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureIds:
    """The tensors of one feature of a batch.

    Attributes:
      kind: "dense", "ragged" or "sparse".
      ids: int64 [n], or string if the table's keys are strings.
      rows: int64; dense [0], ragged the row splits [B + 1], sparse the sorted
        indices [n, 2].
      weights: float32 [n], or [0] if all are 1.
      batch_size: int64 [].
      dense_shape: int64 [2], for sparse ids. It is stored whole: ops that split
        it before a batch is enqueued take 0.8 ms for 26 features of ~20 ids.
    """

    kind: str
    ids: tf.Tensor
    rows: tf.Tensor
    weights: tf.Tensor
    batch_size: tf.Tensor
    dense_shape: Any = (-1, -1)

    @property
    def columns(self) -> Any:
        """The columns of sparse ids, int64 []; negative: unlimited."""
        return self.dense_shape[1]


@dataclasses.dataclass(frozen=True)
class FeaturePlan:
    """The properties of a feature that are known before any batch.

    Attributes:
      table: its table's index in the call's list of tables.
      combiner: "sum", "mean" or "sqrtn".
      max_sequence_length: 0 combines a sample's ids; L keeps L positions.
      validate: whether sparse input is pruned: weights <= 0 unless the combiner
        is sum, and ids < 0 of tables with a fixed vocabulary.
      name: the feature's name in errors.
    """

    table: int
    combiner: str
    max_sequence_length: int = 0
    validate: bool = True
    name: str = ""


def feature_ids(
    value: Any, weights: Any = None, *, name: str = "a feature"
) -> FeatureIds:
    """Makes the tensors of one feature.

    Args:
      value: int64, int32 or string ids: a Tensor [B] or [B, 1], or a
        SparseTensor or RaggedTensor of rank 2.
      weights: None, or floats of the same kind and structure as `value`.
      name: the feature's name in errors.

    Raises:
      ArgumentError: another rank; weights of another kind, or of dense ids.
      DtypeError: ids that are neither integers nor strings, or weights that are
        not floats.
    """
    if isinstance(value, tf.SparseTensor):
        _check_rank(value.shape.rank, (2,), name)
        return FeatureIds(
            kind="sparse",
            ids=as_keys(value.values, name),
            rows=value.indices,
            weights=_weights(weights, tf.SparseTensor, name),
            batch_size=value.dense_shape[0],
            dense_shape=value.dense_shape,
        )
    if isinstance(value, tf.RaggedTensor):
        _check_rank(value.shape.rank, (2,), name)
        return FeatureIds(
            kind="ragged",
            ids=as_keys(value.values, name),
            rows=tf.cast(value.row_splits, tf.int64),
            weights=_weights(weights, tf.RaggedTensor, name),
            batch_size=value.nrows(tf.int64),
        )
    ids = as_keys(value, name)
    if ids.shape.rank != 1:
        _check_rank(ids.shape.rank, (1, 2), name)
    if ids.shape.rank == 2 and ids.shape[1] != 1:
        raise ArgumentError(
            f"The dense ids of {name} must be [B] or [B, 1]; got {ids.shape}."
        )
    if weights is not None:
        raise ArgumentError(f"Weights were given for {name}, which is dense.")
    return flat_ids(tf.reshape(ids, [-1]))


def flat_ids(ids: tf.Tensor) -> FeatureIds:
    """Makes the tensors of a feature with one id per sample, [n]."""
    return FeatureIds(
        kind="dense",
        ids=ids,
        rows=tf.zeros([0], tf.int64),
        weights=tf.zeros([0], tf.float32),
        batch_size=tf.size(ids, out_type=tf.int64),
    )


def grouped_lookup(
    tables: Sequence[Any],
    dims: Sequence[int],
    features: Sequence[FeatureIds],
    plans: Sequence[FeaturePlan],
) -> list[tf.Tensor]:
    """Looks up and combines the ids of all features.

    Args:
      tables: per table a tf.Variable [vocabulary, dim], a handle of
        `table.create`, or an object that acts as a variable with such a handle.
        Gradient tapes watch variables by themselves.
      dims: per table the floats of a row.
      features: the batch.
      plans: one per feature.

    Returns:
      Per feature float32 [B, dim] or [B, max_sequence_length, dim]. The
      gradient with respect to a table is tf.IndexedSlices of distinct ids.

    Raises:
      tf.errors.InvalidArgumentError: an id that cannot be in its table, strings
        for a table of integers or the reverse, or rows or weights that do not
        fit the ids; the text names the feature.
    """
    for table in tables:
        if hasattr(table, "trainable"):
            private.table_accessed(table)
            check_forward_mode([table.handle])
    return library.load().tfembed_grouped_lookup(
        handles(tables),
        *feature_inputs(features),
        **_attrs(dims, features, plans),
    )


def grouped_update(
    tables: Sequence[Any],
    slots: Sequence[Any],
    dims: Sequence[int],
    features: Sequence[FeatureIds],
    plans: Sequence[FeaturePlan],
    gradients: Sequence[tf.Tensor],
    *,
    rules: Sequence[str],
    learning_rates: Sequence[Any],
    nonfinite: str = "skip",
    table_names: Sequence[str] = (),
    norm_limits: Sequence[float] = (),
    norm_groups: Sequence[int] = (),
) -> tf.Tensor:
    """Updates all tables by the gradients of the features' activations.

    Args:
      tables: as for `grouped_lookup`.
      slots: the slot variables of the tables that are tf.Variables, table by
        table, in the order of the table's rule. Other tables have their slots.
      dims: as for `grouped_lookup`.
      features: the batch that was looked up.
      plans: one per feature.
      gradients: per feature a tensor of its activations' shape.
      rules: per table the text of its update rule.
      learning_rates: per table a float or a scalar tensor.
      nonfinite: the treatment of a row whose summed gradient has a NaN or an
        infinity: "skip", "refuse" (before anything is changed) or "allow".
      table_names: the names of the tables in errors; empty: their indices.
      norm_limits: per table the largest Euclidean norm of its sums, to which
        gradients are scaled down; 0, or an empty list: no limit.
      norm_groups: per table a group; tables of one group share a norm and a
        limit.

    Returns:
      int64 [tables]: the count of rows with a non-finite sum.
    """
    rates = [tf.cast(rate, tf.float32) for rate in learning_rates]
    with named_in_errors(table_names) as names:
        return library.load().tfembed_grouped_update(
            handles(tables),
            handles(slots),
            *feature_inputs(features),
            gradients,
            tf.stack(rates),
            rules="\n".join(rules),
            nonfinite=nonfinite,
            table_names=names,
            norm_limits=list(norm_limits),
            norm_groups=list(norm_groups),
            **_attrs(dims, features, plans),
        )


@contextlib.contextmanager
def named_in_errors(table_names: Sequence[str]) -> Iterator[list[str]]:
    """Yields the names for the op; puts them into eager errors.

    Eager TensorFlow caches a kernel for each attribute value and never frees
    it. So in eager mode the op gets no names and its errors have tables'
    indices, which this context replaces.
    """
    if not tf.executing_eagerly():
        yield list(table_names)
        return
    try:
        yield []
    except tf.errors.OpError as error:
        named = re.sub(
            r"\btable (\d+)\b",
            lambda found: f"table '{table_names[int(found[1])]}'",
            error.message if table_names else "",
        )
        if not named:
            raise
        raise type(error)(error.node_def, error.op, named) from None


def grouped_lookup_gradient(
    tables: Sequence[Any],
    dims: Sequence[int],
    features: Sequence[FeatureIds],
    plans: Sequence[FeaturePlan],
    gradients: Sequence[tf.Tensor],
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Returns each table's distinct ids [n] and their gradients [n, dim].

    Integers are ascending, strings in the order of their first occurrence.
    """
    result = library.load().tfembed_grouped_lookup_gradient(
        handles(tables),
        *feature_inputs(features),
        gradients,
        Tdistinct=id_dtypes(
            len(tables), [p.table for p in plans], [f.ids for f in features]
        ),
        **_attrs(dims, features, plans),
    )
    return list(zip(result.distinct_ids, result.sums, strict=True))


def handles(tables: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the resource handles of variables, tables and handles."""
    return [getattr(table, "handle", table) for table in tables]


def feature_inputs(features: Sequence[FeatureIds]) -> tuple[Any, ...]:
    """Returns the inputs of an op on features, in its order."""
    return (
        [f.ids for f in features],
        [f.rows for f in features],
        [f.weights for f in features],
        tf.stack([tf.cast(f.batch_size, tf.int64) for f in features]),
        tf.stack([tf.cast(f.columns, tf.int64) for f in features]),
    )


def _attrs(
    dims: Sequence[int],
    features: Sequence[FeatureIds],
    plans: Sequence[FeaturePlan],
) -> dict[str, Any]:
    return feature_attrs(dims, [f.kind for f in features], plans)


def feature_attrs(
    dims: Sequence[int], kinds: Sequence[str], plans: Sequence[FeaturePlan]
) -> dict[str, Any]:
    """Returns the op attributes that describe tables and features."""
    attrs: dict[str, Any] = {
        "dims": list(dims),
        "kinds": list(kinds),
        "table_ids": [],
        "combiners": [],
        "max_sequence_lengths": [],
        "validate": [],
        "feature_names": [],
    }
    for plan in plans:
        attrs["table_ids"].append(plan.table)
        attrs["combiners"].append(plan.combiner)
        attrs["max_sequence_lengths"].append(plan.max_sequence_length)
        attrs["validate"].append(plan.validate)
        attrs["feature_names"].append(plan.name)
    return attrs


def _check_rank(rank: int | None, allowed: tuple[int, ...], name: str) -> None:
    if rank not in allowed:
        raise ArgumentError(
            f"The ids of {name} must be of rank "
            f"{' or '.join(map(str, allowed))}; got rank {rank}."
        )


def _weights(weights: Any, kind: Any, name: str) -> tf.Tensor:
    if weights is None:
        return tf.zeros([0], tf.float32)
    if not isinstance(weights, kind):
        raise ArgumentError(
            f"The weights of {name} must be a {kind.__name__}, as its ids are; "
            f"got {type(weights).__name__}."
        )
    values = weights.values
    if not isinstance(values, tf.Tensor):
        raise ArgumentError(f"The weights of {name} must be of rank 2.")
    if not values.dtype.is_floating:
        raise DtypeError(
            f"The weights of {name} must be floats; got {values.dtype.name}."
        )
    return tf.cast(values, tf.float32)


private.register_read_only("Tfembed>GroupedLookup")
private.register_read_only("Tfembed>GroupedLookupGradient")
