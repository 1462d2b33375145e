"""TableConfig and FeatureConfig, and a dict of tables by their configs."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfembed import checks, errors, initializers
from tfembed.config import custom_combiner
from tfembed.policies import AdmissionPolicy, EvictionPolicy, Expiry
from tfembed.policies.admission import as_admission
from tfembed.tables import arguments

__all__ = [
    "COMBINERS",
    "FeatureConfig",
    "TableConfig",
    "TablesByConfig",
]

_LOG = logging.getLogger(__name__)

COMBINERS = ("mean", "sum", "sqrtn")

_HALVES = (tf.float16, tf.bfloat16)


# The fields in the repr of TensorFlow's class; ours adds those without
# defaults.
_SHOWN = (
    "vocabulary_size",
    "dim",
    "initializer",
    "optimizer",
    "combiner",
    "name",
    "quantization_config",
)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TableConfig:
    """One embedding table; features that share the object share the table.

    Configs compare by identity, not by value: two equal descriptions are two
    tables. `TPUEmbedding` sets `name` and `optimizer` if they are None.

    Attributes:
      vocabulary_size: the number of rows of a static table, for ids in [0,
        vocabulary_size); or None, for a table that takes any int64 id and
        makes its row when it first trains the id.
      dim: the width of a row.
      initializer: the name of a Keras initializer, for instance "uniform". Or,
        for a static table, a function that is called once as
        initializer(shape, dtype=...); for a table without a vocabulary, an
        argument of `tfembed.initializers.row_initializer`. None: a truncated
        normal distribution with standard deviation 1 / sqrt(dim).
      optimizer: an optimizer of `tfembed.optimizers` or
        `tf.tpu.experimental.embedding`; None: the optimizer of the
        `TPUEmbedding`.
      combiner: how to combine the rows e of a sample's ids, with weights w:
        "sum": sum(w e); "mean": sum(w e) / sum(w); "sqrtn": sum(w e) /
        sqrt(sum(w ** 2)). Or a `CustomCombiner`.
      name: the name of the table in checkpoints; None: `table_0`, `table_1`,
        ...
      quantization_config: a `QuantizationConfig` that rounds looked-up rows;
        None: no rounding.
      layout: must be None in this release.
      dtype: the dtype of the rows, or its name: tf.float32; for a table
        without a vocabulary also tf.float16 or tf.bfloat16. Slots and
        activations are float32.
      seed: the seed of the initial rows of a table without a vocabulary; None:
        the initializer's seed, or else one from TensorFlow's global seed and
        the name.
      admission: a policy of `tfembed.policies` that decides which new ids
        training inserts into a table without a vocabulary, or n for
        `CountAdmission(n)`; None: all ids.
      eviction: a policy that ranks the rows of such a table; None: no ranking.
      expiry: when rows of such a table expire; None: at `HashTable.expire`.
      max_size: the maximum number of ids of such a table: inserts make room by
        the eviction policy. A step with more distinct ids is refused. None:
        unbounded.
      fan_in: the number of rows by which VarianceScaling, Glorot, He and
        Lecun scale new rows of such a table, as a static one does by its
        `vocabulary_size`. None: `max_size`, else 1, of which a warning tells.
      key_dtype: the dtype of the ids, or its name: tf.int64, which takes all
        integers; for a table without a vocabulary also tf.string.
      stochastic_rounding: for rows of float16 and bfloat16: whether updates
        round up or down at random, with the right mean, and not to the
        nearest, so that small updates are not lost.

    Raises:
      tfembed.errors.ArgumentError: a value is not allowed.
      tfembed.errors.UnsupportedError: an option is not in this release.
    """

    vocabulary_size: int | None
    dim: int
    initializer: Any = None
    optimizer: Any = None
    combiner: Any = "mean"
    name: str | None = None
    quantization_config: Any = None
    layout: Any = None
    dtype: tf.DType | str = tf.float32
    seed: int | None = dataclasses.field(default=None, kw_only=True)
    admission: AdmissionPolicy | int | None = dataclasses.field(
        default=None, kw_only=True
    )
    eviction: EvictionPolicy | None = dataclasses.field(
        default=None, kw_only=True
    )
    expiry: Expiry | None = dataclasses.field(default=None, kw_only=True)
    max_size: int | None = dataclasses.field(default=None, kw_only=True)
    fan_in: int | None = dataclasses.field(default=None, kw_only=True)
    key_dtype: tf.DType | str = dataclasses.field(
        default=tf.int64, kw_only=True
    )
    stochastic_rounding: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        size = self.vocabulary_size
        if size is not None and not _is_positive_int(size):
            raise errors.ArgumentError(
                "Argument `vocabulary_size` must be an int and must be >= 1, or "
                "None for a table without a fixed vocabulary. Received: "
                f"{size!r}"
            )
        if not _is_positive_int(self.dim):
            raise errors.ArgumentError(
                "Argument `dim` (embedding dimension) must be an int and must "
                f"be >= 1. Received: {self.dim!r}"
            )
        for name in ("dtype", "key_dtype"):
            dtype = as_dtype(getattr(self, name), name)
            object.__setattr__(self, name, dtype)
        self._check_initializer()
        self._check_policies()
        check_table_options(self)
        self._check_numbers()
        if self.name is not None:
            arguments.check_name(self.name)
        else:
            _LOG.warning(
                "A TableConfig without a name is named by its position among "
                "the features (table_0, table_1, ...), in checkpoints too. "
                "Name it, so that checkpoints still match when features change."
            )

    def __repr__(self) -> str:
        values = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self)
        }
        if _is_default_initializer(self.initializer, self.dim):
            values["initializer"] = None
        shown = [
            f"{f.name}={values[f.name]!r}"
            for f in dataclasses.fields(self)
            if f.name in _SHOWN or values[f.name] != f.default
        ]
        return f"TableConfig({', '.join(shown)})"

    def known_fan_in(self) -> int | None:
        """Returns the number of rows for initializers; None: not known."""
        return initializers.known_fan_in(
            self.fan_in, self.vocabulary_size, self.max_size
        )

    def _check_initializer(self) -> None:
        if self.fan_in is not None and self.vocabulary_size is not None:
            raise errors.ArgumentError(
                "`fan_in` is for tables with vocabulary_size=None; got fan_in="
                f"{self.fan_in} and vocabulary_size={self.vocabulary_size}, "
                "which is the fan of this table. Leave `fan_in` out."
            )
        object.__setattr__(
            self, "fan_in", initializers.known_fan_in(self.fan_in)
        )
        if isinstance(self.initializer, type):
            raise errors.ArgumentError(
                "Argument `initializer` must be an instance; got the class "
                f"{self.initializer.__name__}. Call it: "
                f"{self.initializer.__name__}()."
            )
        if isinstance(self.initializer, str):
            named = initializers.by_name(self.initializer)
            object.__setattr__(self, "initializer", named)
        if self.initializer is None:
            object.__setattr__(
                self, "initializer", default_initializer(self.dim)
            )
        elif self.vocabulary_size is None:
            initializers.row_initializer(self.initializer, self.dim)
        elif not callable(self.initializer):
            raise errors.ArgumentError(
                "Argument `initializer` must be a callable, the name of one of "
                "Keras' initializers, or None. "
                f"Received: {self.initializer!r}"
            )
        if self.seed is not None and self.vocabulary_size is not None:
            raise errors.ArgumentError(
                "`seed` is for tables with vocabulary_size=None; got seed="
                f"{self.seed} and vocabulary_size={self.vocabulary_size}. Give "
                "the seed to the initializer."
            )
        if self.seed is not None:
            seed = arguments.table_seed(
                self.seed, self.name or "without a name"
            )
            object.__setattr__(self, "seed", seed)

    def _check_policies(self) -> None:
        given = {
            name: getattr(self, name)
            for name in ("admission", "eviction", "expiry", "max_size")
            if getattr(self, name) is not None
        }
        if self.vocabulary_size is None:
            name = self.name or "without a name"
            arguments.check_policies(**given, table=name)
            admission = as_admission(self.admission)
            object.__setattr__(self, "admission", admission)
            if self.max_size is not None:
                object.__setattr__(
                    self, "max_size", checks.whole(self.max_size)
                )
        elif given:
            raise errors.ArgumentError(
                f"{', '.join(f'`{name}`' for name in given)} of table "
                f"{self.name!r} must be None, since it has vocabulary_size="
                f"{self.vocabulary_size}: the rows of a static table are "
                "there from the start. Give vocabulary_size=None."
            )

    def _check_numbers(self) -> None:
        if self.key_dtype not in (tf.int64, tf.string):
            raise errors.ArgumentError(
                "Argument `key_dtype` must be tf.int64 or tf.string. Received: "
                f"{self.key_dtype!r}"
            )
        if not isinstance(self.stochastic_rounding, bool):
            raise errors.ArgumentError(
                "Argument `stochastic_rounding` must be True or False. "
                f"Received: {self.stochastic_rounding!r}"
            )
        if self.stochastic_rounding and self.dtype not in _HALVES:
            raise errors.ArgumentError(
                "`stochastic_rounding` is for rows of float16 or bfloat16; got "
                f"dtype={tf.as_dtype(self.dtype).name}."
            )
        if self.key_dtype == tf.string and self.vocabulary_size is not None:
            raise errors.ArgumentError(
                "`key_dtype=tf.string` is for tables with vocabulary_size=None; "
                f"got vocabulary_size={self.vocabulary_size}, whose ids are row "
                "numbers."
            )


_TABLE_CONFIGS = (TableConfig, tf.tpu.experimental.embedding.TableConfig)


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureConfig:
    """The lookup of one feature in its table.

    Attributes:
      table: a `TableConfig` of tfembed or TensorFlow.
      max_sequence_length: 0: the ids of a sample are combined to one
        activation. L: SparseTensors and RaggedTensors of rank 2 give one
        activation per id, cut or padded with zeros to length L, unless
        `output_shape` is given.
      validate_weights_and_indices: whether to prune sparse input: ids below 0
        for a static table, and, unless the combiner is "sum", weights of 0 or
        less.
      output_shape: the shape of one replica's activations without the table's
        dim; None: given to `TPUEmbedding.build`, or inferred from the input.
      name: the feature's name in errors; None: its path in the structure.

    Raises:
      tfembed.errors.ArgumentError: a value is not allowed.
    """

    table: Any
    max_sequence_length: int = 0
    validate_weights_and_indices: bool = True
    output_shape: Any = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, _TABLE_CONFIGS):
            raise errors.ArgumentError(
                f"Argument `table` has invalid type {type(self.table)}. "
                "Expected `tfembed.TableConfig` or "
                "`tf.tpu.experimental.embedding.TableConfig`."
            )
        length = self.max_sequence_length
        if type(length) is not int or length < 0:
            raise errors.ArgumentError(
                "Argument `max_sequence_length` must be an int and must be >= "
                f"0. Received: {length!r}"
            )
        object.__setattr__(
            self, "output_shape", tf.TensorShape(self.output_shape)
        )
        if not isinstance(self.validate_weights_and_indices, bool):
            raise errors.ArgumentError(
                "Argument `validate_weights_and_indices` must be a boolean. "
                f"Received: {self.validate_weights_and_indices!r}"
            )


class TablesByConfig(dict[Any, Any]):
    """A dict by TableConfig that also accepts the tables' names as keys.

    `tables["users"]`, `tables.get("users")` and `"users" in tables` find the
    table whose TableConfig has that name. Iteration yields the configs, as in
    TensorFlow.
    """

    def __missing__(self, key: Any) -> Any:
        config = self._config(key)
        if config is None:
            raise errors.MissingTableError(
                f"There is no table {key!r}; the tables are "
                f"{[config.name for config in self]}. Give a name, or the "
                "TableConfig."
            )
        return self[config]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._config(key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """Returns the table of a config or name; `default` if there is none."""
        config = self._config(key)
        return super().get(key if config is None else config, default)

    def _config(self, name: object) -> Any:
        if not isinstance(name, str):
            return None
        return next((config for config in self if config.name == name), None)


def as_dtype(given: Any, argument: str) -> tf.DType:
    """Converts a dtype or the name of a dtype to a tf.DType.

    Raises:
      tfembed.errors.ArgumentError: `given` is neither.
    """
    try:
        return tf.as_dtype(given)
    except TypeError:
        raise errors.ArgumentError(
            f"Argument `{argument}` must be a dtype, such as tf.float32, or its "
            f"name. Received: {given!r}"
        ) from None


def default_initializer(dim: int) -> Callable[..., tf.Tensor]:
    """A truncated normal distribution with standard deviation 1 / sqrt(dim)."""
    return tf.compat.v1.truncated_normal_initializer(0.0, 1 / math.sqrt(dim))


def _is_default_initializer(initializer: Any, dim: int) -> bool:
    default: Any = default_initializer(dim)
    return (
        type(initializer) is type(default)
        and initializer.get_config() == default.get_config()
    )


def check_table_options(table: Any) -> None:
    """Raises an error for a table's options that this release does not support.

    Raises:
      tfembed.errors.ArgumentError: an option has a wrong value.
      tfembed.errors.UnsupportedError: an option is not in this release.
    """
    if isinstance(table.combiner, str):
        if table.combiner not in COMBINERS:
            raise errors.ArgumentError(
                f"String argument `combiner` must be in {COMBINERS}. "
                f"Received: {table.combiner}"
            )
    elif custom_combiner.is_custom(table.combiner):
        custom_combiner.as_combiner(table.combiner)
    else:
        raise errors.ArgumentError(
            f"Argument `combiner` must be one of {COMBINERS} or a "
            f"CustomCombiner. Received: {type(table.combiner)}"
        )
    quantization = table.quantization_config
    if quantization is not None and not hasattr(quantization, "num_buckets"):
        raise errors.ArgumentError(
            "Argument `quantization_config` must be a QuantizationConfig or "
            f"None. Received: {quantization!r}"
        )
    # A TableConfig of TensorFlow 2.16 has no dtype.
    dtype = getattr(table, "dtype", tf.float32)
    if dtype not in (tf.float32, tf.int32, *_HALVES):
        raise errors.ArgumentError(
            "Argument `dtype` must be float32, float16 or bfloat16. Received: "
            f"{dtype!r}"
        )
    if dtype in _HALVES and table.vocabulary_size is not None:
        raise errors.ArgumentError(
            "Argument `dtype` must be float32 for a table with a vocabulary. "
            f"Received: {dtype!r} and vocabulary_size={table.vocabulary_size}"
        )
    later = {
        "layout": table.layout is not None,
        "dtype=tf.int32": dtype == tf.int32,
    }
    for option, is_asked in later.items():
        if is_asked:
            raise errors.UnsupportedError(
                f"Table {table.name!r} asks for {option}, which is not in this "
                "release; leave it out."
            )


def _is_positive_int(value: object) -> bool:
    return type(value) is int and value >= 1
