"""Checks of a variable's arguments: devices, keys, values."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks, errors
from tfembed.cluster.owners import owners
from tfembed.ops.model_calls import keys_to_build_with
from tfembed.tables import arguments

__all__ = [
    "EmbeddingWeights",
    "check_addition",
    "check_no_options",
    "check_partitioner",
    "check_value_shape",
    "default_partition_fn",
    "device_list",
    "id_tensor",
    "key_tensor",
    "make_partition",
    "value_tensor",
    "wide_bags",
    "with_defaults",
]


def device_list(devices: str | Sequence[str] | None) -> list[str]:
    """Returns the device of each shard.

    The default is what `owners` says: the CPU, or all parameter servers.

    Raises:
      tfembed.errors.DtypeError: neither a string nor a list.
    """
    if devices is None:
        return owners()
    if isinstance(devices, str):
        return [devices]
    # A set has no order of shards.
    if not isinstance(devices, Iterable) or isinstance(devices, Set | Mapping):
        raise errors.DtypeError(
            f"`devices` must be a device or a list of them; got {devices!r}."
        )
    return list(devices)


def check_partitioner(partitioner: Any) -> None:
    """Raises DtypeError unless `partitioner` is a function or None."""
    if partitioner is not None and not callable(partitioner):
        raise errors.DtypeError(
            "`partitioner` must be a function of (keys, shard_num), or None; got "
            f"{partitioner!r}."
        )


def key_tensor(
    keys: Any,
    params: Any,
    error: type[errors.TfembedError] = errors.ArgumentError,
) -> tf.Tensor:
    """Converts `keys` of any shape to a tensor of a variable's key dtype.

    Tensors of narrower integers are cast (TFRA refuses them); Python and NumPy
    integers are converted.

    Args:
      keys: tensors or integers.
      params: an object with `name`, `key_dtype` and `value_dtype`.
      error: the exception class to raise.

    Raises:
      error: other keys.
    """
    if isinstance(keys, tf.RaggedTensor | tf.SparseTensor):
        raise error(
            f"'{params.name}' looks up tensors; got a {type(keys).__name__}. "
            "Look up its values, or call `embedding_lookup_sparse` (of "
            "`ragged_embedding_ops` for ragged ids)."
        )
    return arguments.key_tensor(keys, params.key_dtype, params.name, error)


def check_addition(params: Any) -> None:
    """Raises DtypeError if the values of a variable cannot be added."""
    if params.value_dtype in (tf.bool, tf.string):
        raise errors.DtypeError(
            f"Values of '{params.name}' are {params.value_dtype.name} and cannot "
            "be accumulated; write them with `upsert`."
        )


def check_no_options(options: dict[str, Any], name: str) -> None:
    """Raises UnsupportedError for an option that rows of strings lack."""
    for option, value in options.items():
        if value not in (None, False):
            raise errors.UnsupportedError(
                f"'{name}' has rows of strings, which take no `{option}`; got "
                f"{value!r}. Leave it out."
            )


def id_tensor(
    ids: Any, params: Any, error: type[errors.TfembedError] = errors.DtypeError
) -> tf.Tensor:
    """Converts ids for lookups, as `key_tensor`; raises DtypeError (TypeError).

    Tensors for a layer's table are widened, as the layer does.
    """
    if isinstance(ids, tf.Tensor) and ids.dtype == params.key_dtype:
        return ids  # Fast path, as in `arguments.key_tensor`.
    if tf.is_tensor(ids) or isinstance(ids, np.ndarray):
        as_keys = getattr(params, "as_keys", None)
        if as_keys is not None:
            ids = as_keys(ids)
        elif tf.as_dtype(ids.dtype).is_floating:
            ids = keys_to_build_with(ids, params)
    return key_tensor(ids, params, error)


def wide_bags(ids: Any, params: Any) -> Any:
    """Casts narrower integers of a SparseTensor or RaggedTensor to keys.

    Other values are returned unchanged, for the caller's checks.
    """
    if not isinstance(ids, tf.RaggedTensor | tf.SparseTensor):
        return ids
    if isinstance(ids, tf.RaggedTensor):
        wide = arguments.widened(ids.flat_values, params.key_dtype)
        return ids if wide is ids.flat_values else ids.with_flat_values(wide)
    wide = arguments.widened(ids.values, params.key_dtype)
    return ids if wide is ids.values else ids.with_values(wide)


def value_tensor(values: Any, params: Any) -> tf.Tensor:
    """Converts `values` to a tensor of a variable's value dtype.

    Raises:
      tfembed.errors.ArgumentError: a tensor of another dtype, or a value that
        cannot be converted.
    """
    return arguments.value_tensor(
        values, params.value_dtype, params.name, errors.ArgumentError
    )


def check_value_shape(keys: tf.Tensor, values: tf.Tensor, dim: int) -> None:
    """Raises if, by the static shapes, `values` cannot be keys.shape + [dim].

    Raises:
      tf.errors.InvalidArgumentError: the op's error for shapes that are known
        only when it runs.
    """
    checks.rows("value", keys, values, dim)


def with_defaults(
    values: tf.Tensor, exists: tf.Tensor, defaults: Any
) -> tf.Tensor:
    """Replaces the rows of missing keys in `values` by `defaults`.

    Args:
      values: rows, keys.shape + [dim].
      exists: bool, keys.shape: whether each key is present.
      defaults: one row for all keys, [dim], or one per key, keys.shape + [dim];
        None: `values` is returned.

    Raises:
      tfembed.errors.ArgumentError: rows of another width or number.
      tf.errors.InvalidArgumentError: when it runs: the same, if the static
        shapes are not known.
    """
    if defaults is None:
        return values
    defaults = tf.convert_to_tensor(defaults, values.dtype)
    if not _become(defaults.shape, values.shape):
        raise errors.ArgumentError(
            "`dynamic_default_values` must be one row of width "
            f"{values.shape[-1]}, or one for each key, {values.shape}; got shape "
            f"{defaults.shape}."
        )
    rows = tf.where(exists[..., tf.newaxis], values, defaults)
    fits = tf.debugging.assert_equal(
        tf.shape(rows),
        tf.shape(values),
        "`dynamic_default_values` are too many",
    )
    with tf.control_dependencies([] if fits is None else [fits]):
        return tf.identity(rows)


def _become(shape: tf.TensorShape, rows: tf.TensorShape) -> bool:
    """Says whether `shape` may be broadcast to `rows` with the same width."""
    if shape.rank and shape[-1] not in (None, rows[-1]):
        return False
    try:
        both = tf.broadcast_static_shape(shape, rows)
    except ValueError:
        return False
    return bool(both.is_compatible_with(rows))


class EmbeddingWeights(abc.ABC):
    """The interface of differentiable lookups of rows by key.

    Attributes:
      name: the object's name in errors.
      key_dtype: dtype of the keys.
      value_dtype: dtype of the rows.
      dim: width of a row.
      as_keys: for a layer's table, the function that converts ids to keys.
    """

    name: Any
    key_dtype: Any
    value_dtype: Any
    dim: Any
    as_keys: Any = None

    @abc.abstractmethod
    def embedding_lookup(
        self,
        ids: Any,
        name: str | None = None,
        max_norm: float | None = None,
        return_trainable: bool = False,
    ) -> Any:
        """Returns rows, ids.shape + [dim], as `de.embedding_lookup`."""

    def verify_embedding_weights(
        self, sparse_ids: Any, sparse_weights: Any = None
    ) -> None:
        """Raises for ids or weights of another dtype than keys and rows.

        Args:
          sparse_ids: an object with a dtype.
          sparse_weights: an object with a dtype, or None.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) another dtype.
        """
        self._check_dtype("Ids", sparse_ids, self.key_dtype)
        if sparse_weights is not None:
            self._check_dtype("Weights", sparse_weights, self.value_dtype)

    def _check_dtype(self, what: str, value: Any, dtype: tf.DType) -> None:
        if value.dtype != dtype:
            raise errors.DtypeError(
                f"{what} for '{self.name}' must be {dtype.name}; got "
                f"{tf.as_dtype(value.dtype).name}. Cast them first."
            )


def default_partition_fn(keys: tf.Tensor, shard_num: int) -> tf.Tensor:
    """Maps keys to shards by remainder: shard = floormod(key, shard_num).

    Strings are mapped by `tf.strings.to_hash_bucket_fast`.

    Args:
      keys: integers or strings of any shape.
      shard_num: the number of shards.

    Returns:
      int32 shards in [0, shard_num), of the keys' shape.
    """
    keys = tf.convert_to_tensor(keys)
    if shard_num <= 1:
        return tf.zeros(tf.shape(keys), tf.int32)
    if keys.dtype == tf.string:
        buckets = tf.strings.to_hash_bucket_fast(keys, shard_num)
        return tf.cast(buckets, tf.int32)
    shards = tf.math.floormod(keys, tf.constant(shard_num, keys.dtype))
    return tf.cast(shards, tf.int32)


def make_partition(
    data: tf.Tensor, partition_index: tf.Tensor, shard_num: int
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Splits `data` by shard.

    Args:
      data: [n, ...].
      partition_index: int32 [n], the shard of each entry.
      shard_num: the number of shards.

    Returns:
      The parts, one per shard, and for each part the positions of its entries
      in `data`, as indices for `tf.dynamic_stitch`.

    Raises:
      tf.errors.InvalidArgumentError: a shard outside [0, shard_num).
    """
    data = tf.convert_to_tensor(data)
    if shard_num <= 1:
        return [data], [tf.range(tf.shape(data)[0])]
    positions = tf.range(tf.shape(data)[0])
    parts = tf.dynamic_partition(data, partition_index, shard_num)
    indices = tf.dynamic_partition(positions, partition_index, shard_num)
    return parts, indices
