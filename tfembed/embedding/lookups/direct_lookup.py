"""Lookups in given tables by TensorFlow's ops, without step, queue or engine.

Serving uses them, and TPUEmbeddingV0 if `fused_lookup` cannot look up. Lookups
in static tables use only TensorFlow's own ops: a SavedModel with them does not
need tfembed, XLA compiles them, and the tables' gradients are tf.IndexedSlices.
Lookups in hash tables use the table lookup op.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import dynamic_embedding, errors
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.features.inputs import check_ids
from tfembed.embedding.features.output_shapes import (
    is_sequence,
    warn_if_ignored,
)
from tfembed.embedding.features.pooling import (
    Pooling,
    Wanted,
    static_rows,
    want_ragged,
    want_sparse,
)
from tfembed.ops.combiners import at_positions_of
from tfembed.tables import HashTable

__all__ = [
    "SERVING",
    "V0",
    "LookupStyle",
    "check_input",
    "is_static",
    "look_up",
]


@dataclasses.dataclass(frozen=True)
class LookupStyle:
    """The options in which TensorFlow's two families of lookups differ.

    Attributes:
      drops_last_of_dense: whether ids [..., 1] give [..., dim], as in
        TPUEmbedding; else they give [..., 1, dim].
      prunes: whether sparse input is pruned if its FeatureConfig validates or
        its rank is above 2.
      cuts_shaped: whether sparse sequences with an output shape have the length
        `max_sequence_length`; else their ids are combined.
      sums_gradients: whether the gradient of a static table has each id once,
        summed over all features. Keras optimizers square each entry, so two
        gradients of a row would count as g^2 + h^2, not as (g + h)^2.
    """

    drops_last_of_dense: bool
    prunes: bool
    cuts_shaped: bool
    sums_gradients: bool


SERVING = LookupStyle(
    drops_last_of_dense=True,
    prunes=True,
    cuts_shaped=False,
    sums_gradients=False,
)
V0 = LookupStyle(
    drops_last_of_dense=False,
    prunes=False,
    cuts_shaped=True,
    sums_gradients=True,
)


def look_up(
    features: Sequence[tuple[str, Any]],
    values: Sequence[Any],
    weights: Sequence[Any],
    tables: Mapping[Any, Any],
    style: LookupStyle,
) -> list[tf.Tensor]:
    """Returns the activations of each feature.

    Args:
      features: (path, FeatureConfig); the path is the feature's name in errors.
      values: per feature a Tensor, SparseTensor or RaggedTensor of ids.
      weights: per feature None or its weights.
      tables: the tables by TableConfig.
      style: the style of the lookup.

    Raises:
      tfembed.errors.ArgumentError: an input that does not fit its feature;
        nothing is looked up.
      tfembed.errors.MissingTableError: a table that is not in `tables`.
      tfembed.errors.DtypeError: ids that are not of their table's dtype, or
        rows to combine that are not floats.
      tfembed.errors.UnsupportedError: input for a CustomCombiner, or, in a
        function for XLA, input that XLA cannot look up.
    """
    for (path, feature), value, weight in zip(
        features, values, weights, strict=True
    ):
        check_input(value, weight, feature, path)
        if feature.table not in tables:
            raise errors.MissingTableError(
                f"`tables` has no table for {path}: it needs the TableConfig "
                f"named {feature.table.name!r} as a key."
            )
    wanted = [
        _want(value, weight, feature, tables[feature.table], style, path)
        for (path, feature), value, weight in zip(
            features, values, weights, strict=True
        )
    ]
    ids = [one.ids for one in wanted]
    rows = _rows(features, ids, tables, style)
    return [
        one.activations(of_one)
        for one, of_one in zip(wanted, rows, strict=True)
    ]


def _want(
    value: Any,
    weights: Any,
    feature: Any,
    table: Any,
    style: LookupStyle,
    path: str,
) -> Wanted:
    rank = value.shape.rank
    is_cut = is_sequence(feature) or (
        style.cuts_shaped and isinstance(value, tf.SparseTensor)
    )
    pooling = Pooling(
        dim=feature.table.dim,
        combiner=feature.table.combiner,
        # As tf.nn.safe_embedding_lookup_sparse, TensorFlow's only lookup for a
        # rank above 2.
        validate=style.prunes
        and (feature.validate_weights_and_indices or rank != 2),
        has_vocabulary=is_static(table),
        sequence_length=feature.max_sequence_length if is_cut else 0,
    )
    if weights is not None:
        weights = at_positions_of(value, weights, path)
    if isinstance(value, tf.SparseTensor):
        warn_if_ignored(feature, rank, path)
        return want_sparse(value, weights, pooling, path=path)
    if isinstance(value, tf.RaggedTensor):
        return want_ragged(
            value, weights, pooling, feature.output_shape, path=path
        )
    if style.drops_last_of_dense and rank is not None and rank > 1:
        # One id per sample: [B, 1] is [B], as in training.
        value = tf.squeeze(value, -1) if value.shape[-1] == 1 else value
    return Wanted(value, lambda rows: rows)


def is_static(table: Any) -> bool:
    """Says whether a table has a vocabulary."""
    return not isinstance(table, (HashTable, dynamic_embedding.Variable))


def _rows(
    features: Sequence[tuple[str, Any]],
    ids: Sequence[tf.Tensor],
    tables: Mapping[Any, Any],
    style: LookupStyle,
) -> list[tf.Tensor]:
    """Returns the rows of each feature's ids."""
    found: dict[int, tf.Tensor] = {}
    together: dict[Any, list[int]] = {}
    for i, (path, feature) in enumerate(features):
        table, config = tables[feature.table], feature.table
        if not is_static(table):
            found[i] = _grown_rows(table, ids[i])
        elif style.sums_gradients:
            together.setdefault(config, []).append(i)
        else:
            found[i] = static_rows(table, [(path, ids[i])])[0]
    for config, here in together.items():
        wanted = [(features[i][0], ids[i]) for i in here]
        of_table = static_rows(tables[config], wanted, sums_gradients=True)
        found.update(zip(here, of_table, strict=True))
    return [found[i] for i in range(len(features))]


def _grown_rows(table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Looks up rows in a table without a vocabulary."""
    if ids.dtype != tf.string:
        ids = tf.cast(ids, tf.int64)
    if isinstance(table, HashTable):
        return tf.cast(table.lookup(ids)[0], tf.float32)
    # The gradient goes to the variable, by id.
    rows = dynamic_embedding.embedding_lookup(table, ids, name=table.name)
    return tf.cast(rows, tf.float32)


def check_input(value: Any, weights: Any, feature: Any, path: str) -> None:
    """Raises the errors of `look_up` if an input does not fit its feature."""
    if not isinstance(value, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
        raise errors.ArgumentError(
            f"Input {path} is type {type(value)}. Tensor, SparseTensor or "
            "RaggedTensor expected."
        )
    is_dense = isinstance(value, tf.Tensor)
    if weights is not None:
        if is_dense:
            raise errors.ArgumentError(
                f"Weight specified for {path}, but input is dense."
            )
        if type(weights) is not type(value):
            raise errors.ArgumentError(
                f"Weight for {path} is of type {type(weights)} but it does not "
                f"match type of the input which is {type(value)}."
            )
        if feature.max_sequence_length > 0:
            raise errors.ArgumentError(
                f"Weight specified for {path}, but this is a sequence feature."
            )
    if is_dense and feature.max_sequence_length > 0:
        raise errors.ArgumentError(
            f"Feature {path} is a sequence feature but a dense tensor was "
            "passed."
        )
    check_ids(value.dtype, path, feature.table)
    if is_custom(feature.table.combiner) and not is_dense:
        raise errors.UnsupportedError(
            f"The table of {path} has a CustomCombiner, which this lookup does "
            "not know the weights of. Use TPUEmbedding, with training=False."
        )
    if isinstance(value, tf.RaggedTensor) and value.shape.rank != 2:
        raise errors.ArgumentError(
            f"Only rank 2 ragged tensor is supported, but got rank "
            f"{value.shape.rank} for {path}"
        )
