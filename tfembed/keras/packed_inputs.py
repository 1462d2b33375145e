"""Packed batches as a dict of tensors, the form that Keras models take.

    packed_ids, packed_rows, packed_weights      the fields of PackedFeatures
    packed_strings                               only if there are strings
    packed_sizes-<features>-<one>-<another>...   its `sizes`; the name has the
                                                 static fields

For each feature the name has the kind (d, r, s; a capital letter for strings),
a w if it has weights, and the shape: `r4096xn` is a RaggedTensor [4096, None]
without weights. `<features>` is a checksum of the features' paths.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, TypeGuard

import keras
import tensorflow as tf

from tfembed import errors
from tfembed.dynamic_embedding.keras.float_ids import stand_in
from tfembed.embedding import PackedFeatures
from tfembed.embedding.features.inputs import check_ids
from tfembed.embedding.plan import feature_paths

__all__ = [
    "are_floats",
    "as_inputs",
    "from_inputs",
    "ids_for",
    "input_shapes",
    "is_packed",
    "stand_in",
]

_SIZES = "packed_sizes"
_KINDS = {kind[0]: kind for kind in ("dense", "ragged", "sparse")}
_FEATURE = re.compile(r"([drsDRS])(w?)(.*)")


def as_inputs(packed: PackedFeatures) -> dict[str, tf.Tensor]:
    """Converts `packed` to a dict of tensors, for `from_inputs`."""
    features = [
        (kind[0].upper() if is_string else kind[0])
        + ("w" if is_weighted else "")
        + "x".join("n" if n is None else str(n) for n in shape)
        for kind, is_string, is_weighted, shape in zip(
            packed.kinds,
            packed.are_strings,
            packed.weighted,
            packed.shapes,
            strict=True,
        )
    ]
    inputs = {
        "packed_ids": packed.ids,
        "packed_rows": packed.rows,
        "packed_weights": packed.weights,
        "-".join([_SIZES, _checksum(packed.paths), *features]): packed.sizes,
    }
    if packed.strings is not None:
        inputs["packed_strings"] = packed.strings
    return inputs


def is_packed(inputs: Any) -> bool:
    """Says whether inputs are of `as_inputs`, or Keras' placeholders."""
    return isinstance(inputs, dict) and any(
        str(name).startswith(f"{_SIZES}-") for name in inputs
    )


def from_inputs(inputs: dict[str, Any], feature_config: Any) -> PackedFeatures:
    """Converts the dict of `as_inputs` to the packed batch.

    Args:
      inputs: the result of `as_inputs`.
      feature_config: the structure of FeatureConfigs of the batch.

    Raises:
      tfembed.errors.ArgumentError: a batch of other features.
      tfembed.errors.DtypeError: floats, as `stand_in` says.
    """
    name, features = _described(inputs, feature_config)
    return PackedFeatures(
        ids=_ids(inputs, "packed_ids"),
        strings=_ids(inputs, "packed_strings", tf.string),
        rows=_ids(inputs, "packed_rows"),
        weights=inputs["packed_weights"],
        sizes=_ids(inputs, name),
        paths=tuple(feature_paths(feature_config)),
        kinds=tuple(_KINDS[kind.lower()] for kind, _, _ in features),
        are_strings=tuple(kind.isupper() for kind, _, _ in features),
        shapes=tuple(_shape(shape) for _, _, shape in features),
        weighted=tuple(bool(weighted) for _, weighted, _ in features),
    )


def input_shapes(inputs: dict[str, Any], feature_config: Any) -> Any:
    """Makes KerasTensors of the features' shapes, as `feature_config`.

    Raises:
      tfembed.errors.ArgumentError: a batch of other features.
    """
    _, features = _described(inputs, feature_config)
    return tf.nest.pack_sequence_as(
        feature_config,
        [
            keras.KerasTensor(
                _shape(shape).as_list(),
                "string" if kind.isupper() else "int64",
                sparse=kind.lower() == "s",
            )
            for kind, _, shape in features
        ],
    )


def _ids(inputs: dict[str, Any], name: str, dtype: tf.DType = tf.int64) -> Any:
    """Returns a field, `stand_in` for floats, or None."""
    value = inputs.get(name)
    if not are_floats(value):
        return value
    return stand_in(
        value,
        dtype,
        f"Input {name} must be {dtype.name}, as the layer's `preprocess` makes "
        f"it; got {value.dtype.name}. In a Keras model, give keras.Input(dtype="
        f"'{dtype.name}').",
    )


def _described(
    inputs: dict[str, Any], feature_config: Any
) -> tuple[str, list[tuple[str, str, str]]]:
    """Returns the name that describes the features, and its parts."""
    name = next(n for n in inputs if n.startswith(f"{_SIZES}-"))
    _, checksum, *features = name.split("-")
    paths = feature_paths(feature_config)
    if checksum != _checksum(paths) or len(features) != len(paths):
        raise errors.ArgumentError(
            f"The packed batch is of other features than the layer's, which are "
            f"{list(paths)}. Pack it by `preprocess` of this layer."
        )
    return name, [_FEATURE.fullmatch(one).groups() for one in features]  # type: ignore[union-attr, misc]  # `as_inputs` made it.


def _checksum(paths: Any) -> str:
    return f"{zlib.crc32(repr(tuple(paths)).encode()):08x}"


def _shape(text: str) -> tf.TensorShape:
    return tf.TensorShape(
        [None if n == "n" else int(n) for n in text.split("x")]
    )


def are_floats(value: Any) -> TypeGuard[tf.Tensor]:
    """Says whether `value` is a dense float tensor."""
    return isinstance(value, tf.Tensor) and value.dtype.is_floating


def ids_for(value: Any, path: str, feature: Any) -> Any:
    """Replaces float tensors by `stand_in`; returns other values unchanged.

    Args:
      value: the given ids of a feature.
      path: the feature's name in errors.
      feature: the FeatureConfig.

    Raises:
      The errors of `stand_in`.
    """
    if not are_floats(value):
        return value
    try:
        check_ids(value.dtype, path, feature.table)
    except errors.DtypeError as error:
        wanted = getattr(feature.table, "key_dtype", tf.int64)
        return stand_in(value, wanted, str(error))
    return value
