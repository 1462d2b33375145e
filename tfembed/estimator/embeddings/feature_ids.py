"""The ids of one input feature: reads, checks and partitions them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from tfembed import errors, ops
from tfembed.estimator.embeddings import private
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig

__all__ = [
    "FeatureReader",
    "dealt",
    "feature_readers",
    "id_checks",
    "indices_of",
    "share_of_core",
    "used_ids",
]

Share = tuple[ops.FeatureIds, ops.FeaturePlan]


@dataclasses.dataclass(frozen=True)
class FeatureReader:
    """Reads a feature that is sparse, ragged or dense.

    A row of a dense matrix has the ids of a sample, with padding: -1 ("" for
    strings) for the feature of a column, as in feature columns; 0 for a
    feature of a dict of FeatureConfigs, as in TPUEstimator. A vector, or a
    matrix with one column, has an id for each sample; -1 means no id.

    Attributes:
      key: the name of the feature.
      config: the FeatureConfig of the feature.
      table: the TableConfig of its table.
      is_column: whether a feature column describes the feature.
    """

    key: str
    config: FeatureConfig
    table: TableConfig
    is_column: bool

    def plan(self, table: int) -> ops.FeaturePlan:
        """Returns the feature's part of a lookup.

        Args:
          table: the index of the table in the lookup.
        """
        return ops.FeaturePlan(
            table=table,
            combiner=self.table.combiner or "sum",
            max_sequence_length=self.config.max_sequence_length,
            name=self.key,
        )

    def read(self, features: Mapping[str, Any]) -> ops.FeatureIds:
        """Returns the ids and their weights.

        Args:
          features: the input of one replica.

        Raises:
          tfembed.errors.ArgumentError: the feature or its weights are missing,
            or their type cannot be looked up.
        """
        value = self._value(features)
        weights = self._weights(features, value)
        if isinstance(value, tf.SparseTensor) and value.shape.rank is None:
            # Parsed or fed inputs may have an unknown rank: it is checked at
            # run time.
            value = tf.SparseTensor(
                tf.ensure_shape(value.indices, [None, 2]),
                value.values,
                tf.ensure_shape(value.dense_shape, [2]),
            )
        if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
            return ops.feature_ids(value, weights, name=f"'{self.key}'")
        if value.shape.rank == 2 and value.shape[1] == 1:
            value = tf.reshape(value, [-1])
        if self.table.combiner is None and not self.config.max_sequence_length:
            return ops.feature_ids(value, name=f"'{self.key}'")
        return self._read_dense(value)

    def lengths(self, ids: ops.FeatureIds) -> tf.Tensor:
        """Returns the number of ids of each sample of a sequence, int64 [B]."""
        if ids.kind == "ragged":
            places = ids.rows[1:] - ids.rows[:-1]
        else:
            ends = tf.math.unsorted_segment_max(
                ids.rows[:, 1] + 1, ids.rows[:, 0], ids.batch_size
            )
            places = tf.maximum(ends, 0)
        most = tf.constant(self.config.max_sequence_length, tf.int64)
        return tf.minimum(places, most)

    def put_lengths(
        self,
        features: dict[str, Any],
        ids: ops.FeatureIds,
        batch_size: int | None,
    ) -> None:
        """Adds a sequence's `lengths` to `features`, under its column's key.

        Args:
          features: the dict to extend if the feature is a sequence.
          ids: the result of `read`.
          batch_size: B; None if unknown.
        """
        if self.config.max_sequence_length:
            lengths = tf.ensure_shape(self.lengths(ids), [batch_size])
            features[private.length_key(self.key)] = lengths

    def take_out(self, features: dict[str, Any]) -> None:
        """Removes the feature's ids and their weights from `features`."""
        features.pop(self.key, None)
        features.pop(self.config.weight_key or self.key, None)

    def _value(self, features: Mapping[str, Any]) -> Any:
        if self.key not in features:
            raise errors.ArgumentError(
                f"The input has no feature '{self.key}', which the "
                f"EmbeddingConfigSpec looks up; it has {sorted(features)}."
            )
        value = features[self.key]
        if not isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
            value = tf.convert_to_tensor(value)
        has_strings = self.table.key_dtype == tf.string
        if has_strings and value.dtype != tf.string:
            raise errors.ArgumentError(
                f"The ids of '{self.key}' must be strings, as the key_dtype of "
                f"its table says; got {value.dtype.name}."
            )
        if not has_strings and not value.dtype.is_integer:
            raise errors.ArgumentError(
                "SparseTensor with string as values are not supported. The "
                f"table of feature '{self.key}' takes integers; got "
                f"{value.dtype.name}. Turn strings into integers in your "
                "input_fn(), for a column with a vocabulary by "
                "your_column.categorical_column._transform_feature(...), or use "
                "tfembed.estimator.embedding_column(..., key_dtype=tf.string), "
                "which needs no vocabulary."
            )
        if value.dtype not in (tf.int32, tf.int64, tf.string):
            value = tf.cast(value, tf.int64)
        return value

    def _weights(self, features: Mapping[str, Any], value: Any) -> Any:
        key = self.config.weight_key
        if key is None:
            return None
        if key not in features:
            raise errors.ArgumentError(
                f"Cannot find weights {key} for weighted_categorical_column. "
                "Please check if the weights are present in feature dict. Also "
                "note weight-sharing among weighted_categorical_column is not "
                "supported on TPU."
            )
        weights = features[key]
        if not isinstance(weights, (tf.SparseTensor, tf.RaggedTensor)):
            raise errors.ArgumentError(
                f"weighted_categorical_column with weight key name {key} has "
                "dense weights. Dense weights are not supported on TPU. Please "
                "use sparse weights instead."
            )
        if not isinstance(value, type(weights)):
            raise errors.ArgumentError(
                f"Found weights {key} of type {type(weights).__name__}, which "
                f"are not compatible with feature {self.key} of type "
                f"{type(value).__name__}. Give both the same form."
            )
        return tf.cast(weights, tf.float32)

    def _read_dense(self, value: tf.Tensor) -> ops.FeatureIds:
        """Converts a vector, or a matrix with padding, to sparse ids."""
        if value.shape.rank not in (1, 2):
            raise errors.ArgumentError(
                f"The dense ids of '{self.key}' must be [B] or [B, n]; got "
                f"shape {value.shape}."
            )
        is_vector = value.shape.rank == 1
        if is_vector:
            value = value[:, tf.newaxis]
        if self.table.key_dtype == tf.string:
            there = tf.not_equal(value, "")
        elif self.is_column or is_vector:
            if self.table.vocabulary_size is not None:
                # The lookup ignores ids below 0.
                return self._all_places(value)
            there = tf.not_equal(value, -1)
        else:
            there = tf.not_equal(value, 0)
        indices = tf.where(there)
        sparse = tf.SparseTensor(
            indices,
            tf.gather_nd(value, indices),
            tf.shape(value, out_type=tf.int64),
        )
        return ops.feature_ids(sparse, name=f"'{self.key}'")

    def _all_places(self, value: tf.Tensor) -> ops.FeatureIds:
        shape = tf.shape(value, out_type=tf.int64)
        rows = tf.range(shape[0])[:, tf.newaxis] * tf.ones_like(value, tf.int64)
        places = tf.range(shape[1])[tf.newaxis, :] + tf.zeros_like(
            value, tf.int64
        )
        indices = tf.reshape(tf.stack([rows, places], -1), [-1, 2])
        sparse = tf.SparseTensor(indices, tf.reshape(value, [-1]), shape)
        return ops.feature_ids(sparse, name=f"'{self.key}'")


def feature_readers(
    tables: Mapping[str, TableConfig],
    features: Mapping[str, FeatureConfig],
    *,
    is_column: bool,
    held: Collection[str],
) -> list[FeatureReader]:
    """Returns readers of the features of some tables, ordered by key.

    Args:
      tables: TableConfigs by table.
      features: FeatureConfigs by feature.
      is_column: whether feature columns describe the features.
      held: the names of the tables whose features are read.

    Raises:
      tfembed.errors.ArgumentError: two features share their weights.
    """
    keys = [c.weight_key for c in features.values() if c.weight_key]
    for key in keys:
        if keys.count(key) > 1:
            raise errors.ArgumentError(
                f"Cannot find weights {key} for weighted_categorical_column a "
                "second time. Please check if the weights are present in "
                "feature dict. Also note weight-sharing among "
                "weighted_categorical_column is not supported on TPU. Give the "
                "input the weights under a second name."
            )
    return [
        FeatureReader(
            key,
            features[key],
            tables[features[key].table_id],
            is_column=is_column,
        )
        for key in sorted(features)
        if features[key].table_id in held
    ]


def dealt(
    ids: ops.FeatureIds,
    plan: ops.FeaturePlan,
    homes: tf.Tensor,
    num_homes: int,
    *,
    has_vocabulary: bool,
) -> list[Share]:
    """Partitions a feature's ids by the homes of their rows.

    The ids of a sample with the same home are summed there, with the weights
    that the feature's combiner gives them in the whole sample: so the sum over
    homes is the sample's activation, and each row gets the same gradient.

    Args:
      ids: the ids of the feature.
      plan: the lookup of the feature.
      homes: the home of each id's row, integer [n].
      num_homes: the number of homes.
      has_vocabulary: whether a lookup ignores ids below 0.

    Returns:
      For each home, sparse ids with weights, and the plan that sums them.
    """
    indices = indices_of(ids)
    weights, used = _weights(ids, plan, indices, has_vocabulary)
    nowhere = tf.fill(tf.shape(homes), num_homes)
    places = tf.dynamic_partition(
        tf.range(tf.size(homes)),
        tf.where(used, tf.cast(homes, tf.int32), nowhere),
        num_homes + 1,
    )
    columns = tf.reduce_max(tf.concat([indices[:, 1], [0]], 0)) + 1
    shares = [
        ops.FeatureIds(
            kind="sparse",
            ids=tf.gather(ids.ids, at_home),
            rows=tf.gather(indices, at_home),
            # The ids of a sequence have no weights.
            weights=tf.zeros([0], tf.float32)
            if plan.max_sequence_length
            else tf.gather(weights, at_home),
            batch_size=ids.batch_size,
            dense_shape=(ids.batch_size, columns),
        )
        for at_home in places[:-1]
    ]
    # A sum uses weights of any sign unchanged.
    summed = dataclasses.replace(plan, combiner="sum")
    return [(share, summed) for share in shares]


def share_of_core(
    ids: ops.FeatureIds,
    plan: ops.FeaturePlan,
    core: int,
    num_cores: int,
    *,
    has_vocabulary: bool,
) -> Share:
    """Returns the ids of a feature whose rows belong to one core.

    On a TPU with `use_gradient_accumulation=False`, a core applies the
    gradients of such rows separately.

    Args:
      ids: the ids of the feature.
      plan: the lookup of the feature.
      core: the number of the core. A row belongs to core id % num_cores, a
        string's row to the core of its hash.
      num_cores: the number of cores.
      has_vocabulary: whether the lookup ignored ids below 0.

    Returns:
      Sparse ids with weights, and the plan that sums them.
    """
    if ids.ids.dtype == tf.string:
        home = tf.strings.to_hash_bucket_fast(ids.ids, num_cores)
    else:
        home = tf.math.floormod(ids.ids, tf.constant(num_cores, tf.int64))
    (share,) = dealt(
        ids,
        plan,
        tf.cast(tf.not_equal(home, core), tf.int32),
        1,
        has_vocabulary=has_vocabulary,
    )
    return share


def indices_of(ids: ops.FeatureIds) -> tf.Tensor:
    """Returns the sample and the position of each id, int64 [n, 2]."""
    if ids.kind == "sparse":
        return ids.rows
    if ids.kind == "dense":
        rows = tf.range(ids.batch_size)
        return tf.stack([rows, tf.zeros_like(rows)], 1)
    ragged = tf.RaggedTensor.from_row_splits(ids.ids, ids.rows, validate=False)
    rows = tf.cast(ragged.value_rowids(), tf.int64)
    places = tf.range(tf.size(ids.ids, tf.int64)) - tf.gather(ids.rows, rows)
    return tf.stack([rows, places], 1)


def used_ids(
    ids: ops.FeatureIds, plan: ops.FeaturePlan, *, has_vocabulary: bool
) -> tf.Tensor | None:
    """Returns whether a lookup uses each id, bool [n]; None: it uses all.

    Args:
      ids: the ids of the feature.
      plan: the lookup of the feature.
      has_vocabulary: whether a lookup ignores ids below 0.
    """
    if ids.kind != "sparse" or not plan.validate:
        return None
    conditions = [ids.ids >= 0] if has_vocabulary else []
    if plan.combiner != "sum" and ids.weights.shape[0] != 0:
        conditions.append(ids.weights > 0)
    if not conditions:
        return None
    return tf.reduce_all(tf.stack(conditions), 0)


def id_checks(
    ids: tf.Tensor, name: str, num_rows: int, *, are_padded: bool
) -> list[Any]:
    """Returns ops that raise an error if an id is outside the table.

    Args:
      ids: int64 [n].
      name: the name of the feature, for the error.
      num_rows: the number of rows of the table.
      are_padded: whether ids below 0 are allowed, as padding.
    """
    text = f"In {name}: ids must be in [0, {num_rows}), the table's rows"
    most = tf.constant(num_rows, tf.int64)
    checks = [tf.debugging.assert_less(ids, most, text)]
    if not are_padded:
        checks.append(tf.debugging.assert_non_negative(ids, text))
    return checks


def _weights(
    ids: ops.FeatureIds,
    plan: ops.FeaturePlan,
    indices: tf.Tensor,
    has_vocabulary: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each id's factor, float32 [n], and whether it is used, bool."""
    weights = ids.weights
    if weights.shape[0] == 0:  # Features without weights have shape [0].
        weights = tf.ones(tf.shape(ids.ids), tf.float32)
    used = used_ids(ids, plan, has_vocabulary=has_vocabulary)
    if used is None:
        used = tf.ones(tf.shape(ids.ids), tf.bool)
    else:
        weights = tf.where(used, weights, tf.zeros_like(weights))
    if plan.combiner == "sum":
        return weights, used
    squares = weights if plan.combiner == "mean" else weights * weights
    total = tf.math.unsorted_segment_sum(squares, indices[:, 0], ids.batch_size)
    if plan.combiner == "sqrtn":
        total = tf.sqrt(total)
    divisors = tf.gather(total, indices[:, 0])
    return tf.math.divide_no_nan(weights, divisors), used
