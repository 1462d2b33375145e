"""The tables and features of an EmbeddingConfigSpec given as two dicts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.config.table_config import as_dtype
from tfembed.estimator.embeddings.parameters import OptimizationParameters
from tfembed.initializers import by_name, known_fan_in, table_initializer
from tfembed.policies import AdmissionPolicy, EvictionPolicy, Expiry
from tfembed.policies.admission import as_admission

__all__ = ["WITHOUT_VOCABULARY", "FeatureConfig", "TableConfig"]

# The arguments of TableConfig for tables that grow with their ids.
WITHOUT_VOCABULARY = (
    "dtype",
    "seed",
    "admission",
    "eviction",
    "expiry",
    "max_size",
    "fan_in",
    "key_dtype",
    "stochastic_rounding",
)


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """One embedding table of a TPUEstimator.

    Attributes:
      vocabulary_size: the number of rows, for ids in [0, vocabulary_size); or
        None for a table that takes any id, and makes its row when it first
        trains the id.
      dimension: the width of a row.
      initializer: called as initializer(shape, dtype=...), or the name of a
        Keras initializer. None: a truncated normal distribution with standard
        deviation 1 / sqrt(dimension). For a table without a vocabulary: an
        initializer of `tfembed.TableConfig`.
      combiner: how to combine the rows of a sample's ids: "mean", "sum",
        "sqrtn", or None for one id per sample.
      hot_id_replication: a hint for the TPU; no effect elsewhere.
      learning_rate: a number that replaces the optimization parameters' rate.
      learning_rate_fn: a function of the global step that returns the rate.
      optimization_parameters: replaces that of the EmbeddingConfigSpec.
      dtype, seed, admission, eviction, expiry, max_size, fan_in, key_dtype,
        stochastic_rounding: options of a table without a vocabulary, as in
        `tfembed.TableConfig`.

    Raises:
      tfembed.errors.ArgumentError: a value is not allowed.
    """

    vocabulary_size: int | None
    dimension: int
    initializer: Any = None
    combiner: str | None = "mean"
    hot_id_replication: bool = False
    learning_rate: float | None = None
    learning_rate_fn: Callable[[Any], Any] | None = None
    optimization_parameters: OptimizationParameters | None = None
    _: dataclasses.KW_ONLY
    dtype: tf.DType | str = tf.float32
    seed: int | None = None
    admission: AdmissionPolicy | int | None = None
    eviction: EvictionPolicy | None = None
    expiry: Expiry | None = None
    max_size: int | None = None
    fan_in: int | None = None
    key_dtype: tf.DType | str = tf.int64
    stochastic_rounding: bool = False

    def __post_init__(self) -> None:
        size = self.vocabulary_size
        if size is not None and not _is_positive(size):
            raise errors.ArgumentError(
                f"Invalid vocabulary_size {size!r}. Give a positive integer, or "
                "None for a table without a fixed vocabulary."
            )
        if not _is_positive(self.dimension):
            raise errors.ArgumentError(
                f"Invalid dimension {self.dimension!r}. Give a positive integer."
            )
        for name in ("dtype", "key_dtype"):
            dtype = as_dtype(getattr(self, name), name)
            object.__setattr__(self, name, dtype)
        if self.dtype not in (tf.float32, tf.float16, tf.bfloat16):
            raise errors.ArgumentError(
                "Argument `dtype` is that of rows: float32, float16 or "
                f"bfloat16; got {self.dtype!r}. That of ids is `key_dtype`."
            )
        object.__setattr__(self, "admission", as_admission(self.admission))
        self._check_initializer()
        if self.combiner not in ("mean", "sum", "sqrtn", None):
            raise errors.ArgumentError(
                f"Invalid combiner {self.combiner!r}. Give 'mean', 'sum', "
                "'sqrtn' or None."
            )
        self._check_rates()
        given = self.optimization_parameters
        if given is not None and not isinstance(given, OptimizationParameters):
            raise errors.ArgumentError(
                "`optimization_parameters` must be one of the Parameters "
                f"classes, such as AdagradParameters; got {given!r}."
            )
        self._check_options()

    def _check_initializer(self) -> None:
        given = self.initializer
        if isinstance(given, str):
            given = by_name(given)
        if given is None:
            given = tf.compat.v1.truncated_normal_initializer(
                mean=0.0, stddev=1 / math.sqrt(self.dimension)
            )
        if self.vocabulary_size is None:
            fan_in = known_fan_in(self.fan_in, self.max_size)
            given = table_initializer(
                given, self.dimension, fan_in, "without a vocabulary"
            )
        elif not callable(given):
            raise errors.ArgumentError(
                f"initializer must be callable if specified. Got {given!r}."
            )
        object.__setattr__(self, "initializer", given)

    def _check_rates(self) -> None:
        rate, function = self.learning_rate, self.learning_rate_fn
        if rate is not None and function is not None:
            raise errors.ArgumentError(
                "At most one of learning_rate and learning_rate_fn can be set; "
                f"got {rate} and {function}."
            )
        if rate is not None and checks.number(rate) is None:
            raise errors.ArgumentError(
                f"`learning_rate` must be a number; got {rate!r}."
            )
        if function is not None and not callable(function):
            raise errors.ArgumentError(
                "`learning_rate_fn` must be a function of the global step; got "
                f"{function!r}."
            )

    def _check_options(self) -> None:
        if self.vocabulary_size is None:
            return
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in WITHOUT_VOCABULARY and value != field.default:
                raise errors.ArgumentError(
                    f"`{field.name}` is for tables without a vocabulary; got "
                    f"{value!r} beside vocabulary_size={self.vocabulary_size}. "
                    "Give vocabulary_size=None, or leave the argument out."
                )


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """The lookup of one feature of a TPUEstimator's input.

    Attributes:
      table_id: the key of the table in `table_to_config_dict`.
      max_sequence_length: 0: the ids of a sample are combined to one
        activation. L: each id has its own activation; sequences are cut or
        padded to L.
      weight_key: the feature with the weights of the ids; None: all are 1.

    Raises:
      tfembed.errors.ArgumentError: the length is not allowed.
    """

    table_id: str
    max_sequence_length: int = 0
    weight_key: str | None = None

    def __post_init__(self) -> None:
        length = self.max_sequence_length
        if checks.whole(length) is None or length < 0:
            raise errors.ArgumentError(
                f"Invalid max_sequence_length {length!r}. Give 0, or the number "
                "of places of a sequence."
            )
        if length and self.weight_key is not None:
            raise errors.ArgumentError(
                "The ids of a sequence are not combined, so weights have no "
                f"effect on them; got max_sequence_length={length} and "
                f"weight_key={self.weight_key!r}. Leave one of the two out."
            )


def _is_positive(value: Any) -> bool:
    number = checks.whole(value)
    return number is not None and number >= 1
