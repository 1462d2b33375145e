"""Checks of a hash table's arguments, and conversion of keys and values."""

from __future__ import annotations

import hashlib
import math
import numbers
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import checks, errors
from tfembed.cluster.owners import host_device
from tfembed.initializers import RowInitializer
from tfembed.ops import private
from tfembed.policies import (
    AdmissionPolicy,
    BloomAdmission,
    EvictionPolicy,
    Expiry,
)
from tfembed.policies.admission import as_admission

__all__ = [
    "at_hand",
    "check_bounded_admission",
    "check_devices",
    "check_initializer",
    "check_name",
    "check_policies",
    "check_rounding",
    "check_rows",
    "check_trained",
    "key_tensor",
    "policy_options",
    "rows_per_shard",
    "shard_bounds",
    "table_dtypes",
    "table_seed",
    "value_tensor",
    "widened",
]


_NO_DEVICE = "no device"


def _device_type(device: Any) -> str | None:
    try:
        spec = tf.DeviceSpec.from_string(device)
    except (AttributeError, TypeError, ValueError):
        return _NO_DEVICE
    if not spec.to_string():  # As for "", which names no device.
        return _NO_DEVICE
    return str(spec.device_type or "CPU")


def check_devices(devices: Sequence[str], table: str) -> tuple[str, ...]:
    """Returns the device of each shard.

    Raises:
      tfembed.errors.ArgumentError: not a list of devices, or an empty list; in
        eager mode also a device that this process does not have, or another
        process's where no server runs ops for this one.
      tfembed.errors.UnsupportedError: a device that is not a CPU.
    """
    is_list = isinstance(devices, Sequence) and not isinstance(devices, str)
    with tf.init_scope():
        is_graph = not tf.executing_eagerly()
    if is_list and is_graph and any(devices):
        # In a graph, "" in a list with other names means the first device.
        devices = ["/CPU:0" if one == "" else one for one in devices]
    kinds = [_device_type(device) for device in devices] if is_list else []
    if not kinds or _NO_DEVICE in kinds:
        raise errors.ArgumentError(
            "`devices` must list one device per shard, as in ['/CPU:0']; got "
            f"{devices!r} for table '{table}'."
        )
    for device, kind in zip(devices, kinds, strict=True):
        if kind != "CPU":
            raise errors.UnsupportedError(
                f"Hash tables live in host memory; got device {device!r} for "
                f"table '{table}'. Use '/CPU:0': a model on a GPU reads it too."
            )
    with tf.init_scope():
        if tf.executing_eagerly():  # A graph may run on other machines.
            _check_present(devices, table)
    return tuple(str(device) for device in devices)


def _check_present(devices: Sequence[str], table: str) -> None:
    """Refuses devices that this process does not have, or does not reach.

    TensorFlow's soft placement would put their shards on the first CPU.
    """
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    for device in devices:
        if not any(_may_be(device, cpu) for cpu in cpus):
            raise errors.ArgumentError(
                f"`devices` must be among the CPUs of this process, {cpus}; got "
                f"{device!r} for table '{table}'. More of them are made with "
                "tf.config.set_logical_device_configuration."
            )
        other = private.unreachable(device)
        if other is not None:
            raise errors.ArgumentError(
                f"A table must be on a CPU of this process; got {other!r} for "
                f"table '{table}', by `devices` or tf.device. "
                "MultiWorkerMirroredStrategy connects its workers for sums "
                "alone: no other op of one worker runs on another. Leave "
                "`devices` out for a table in this process."
            )


def at_hand(devices: Sequence[str]) -> list[str]:
    """Replaces devices that this process lacks by its first CPU.

    Args:
      devices: names of CPUs from a file, which another process may have
        written.
    """
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    return [
        "/CPU:0"
        if _device_type(device) == "CPU"
        and not any(_may_be(device, cpu) for cpu in cpus)
        else device
        for device in devices
    ]


def _may_be(device: str, cpu: str) -> bool:
    """Says whether `device`, possibly a partial name, matches `cpu`."""
    spec = tf.DeviceSpec.from_string(device)
    given = (spec.job, spec.replica, spec.task, spec.device_index)
    return all(
        part in (None, own)
        for part, own in zip(given, host_device(cpu), strict=True)
    )


def check_name(name: Any) -> None:
    """Checks the name of a table, wherever a program gives one.

    Names become parts of file names, and lines of files and on terminals.

    Raises:
      tfembed.errors.ArgumentError: not a string, empty, or with control
        characters, ends of lines or halves of surrogate pairs.
    """
    if not isinstance(name, str) or not name:
        raise errors.ArgumentError(
            f"`name` of a table must be a string that is not empty; got {name!r}."
        )
    if any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in name):
        raise errors.ArgumentError(
            "`name` of a table must have no control characters, such as a line "
            f"break or a NUL, at which file names end; got {name!r}. Leave them "
            "out."
        )


def check_initializer(
    initializer: RowInitializer, values: tf.DType, table: str
) -> None:
    """Refuses initializers with numbers that an integer dtype cannot hold.

    Fractions are truncated later. "normal" and "truncated_normal" have no
    bounds to check.

    Raises:
      tfembed.errors.ArgumentError: a number outside of the dtype's range.
    """
    if not values.is_integer or initializer.kind.endswith("normal"):
        return
    numbers = [int(x) for x in initializer.arguments]
    if initializer.kind == "uniform":  # The upper bound is never drawn.
        low, high = initializer.arguments
        numbers = [int(low), max(int(low), math.ceil(high) - 1)]
    for number in numbers:
        if not values.min <= number <= values.max:
            raise errors.ArgumentError(
                f"`initializer` of table '{table}', whose rows are "
                f"{values.name}, must give numbers in [{values.min}, "
                f"{values.max}]; got {number}. Use smaller ones, or a wider "
                "value dtype."
            )


def check_rounding(stochastic: Any, values: tf.DType, table: str) -> bool:
    """Returns `stochastic_rounding` as a bool.

    Raises:
      tfembed.errors.ArgumentError: not a bool, or True for a value dtype that
        training does not round.
    """
    if not isinstance(stochastic, bool):
        raise errors.ArgumentError(
            f"`stochastic_rounding` must be True or False; got {stochastic!r} "
            f"for table '{table}'."
        )
    if stochastic and values not in (tf.float16, tf.bfloat16):
        raise errors.ArgumentError(
            f"`stochastic_rounding` is for rows of float16 or bfloat16; table "
            f"'{table}' has {values.name}. Leave it out, or use one of these "
            "dtypes."
        )
    return stochastic


def check_rows(keys: tf.Tensor, rows: tf.Tensor, dim: int, table: str) -> None:
    """Refuses rows whose static shape cannot be keys.shape + [dim].

    Raises:
      tf.errors.InvalidArgumentError: the shapes do not fit.
    """
    what = f"the values of table '{table}', one row of width {dim} per key"
    checks.rows(what, keys, rows, dim)


def rows_per_shard(init_size: Any, num_shards: int, table: str) -> int:
    """Returns the number of keys that each shard makes room for, rounded up.

    Raises:
      tfembed.errors.ArgumentError: not an integer of 64 bits, or negative.
    """
    owner = f"table '{table}'"
    rows = checks.integer(
        init_size, "init_size", least=0, most=tf.int64.max, owner=owner
    )
    return -(-rows // num_shards)


def table_seed(seed: Any, table: str) -> int:
    """Returns `seed` as a signed 64-bit integer.

    The default for None is computed from the table's name and TensorFlow's
    global seed (`tf.random.set_seed`), or TensorFlow's default seed if none is
    set, so that restarts and replicas agree.

    Raises:
      tfembed.errors.ArgumentError: not an integer of 64 bits.
    """
    if seed is None:
        with tf.init_scope():
            global_seed, _ = tf.compat.v1.get_seed(0)
        text = f"{global_seed}/{table}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)
    return checks.integer(
        seed, "seed", least=-(2**63), most=2**63 - 1, owner=f"table '{table}'"
    )


def policy_options(
    admission: Any, eviction: Any, expiry: Any, table: str
) -> dict[str, Any]:
    """Returns a table's policies as keyword arguments of `ShardOptions`.

    Raises:
      tfembed.errors.DtypeError: an object that is not a policy of its kind.
      tfembed.errors.ArgumentError: an expiry without an eviction policy.
    """
    for name, policy, kind in (
        ("admission", admission, AdmissionPolicy),
        ("eviction", eviction, EvictionPolicy),
        ("expiry", expiry, Expiry),
    ):
        if policy is not None and not isinstance(policy, kind):
            raise errors.DtypeError(
                f"`{name}` must be of {kind.__name__} of tfembed.policies"
                + (", a number of steps" * (name == "admission"))
                + f" or None; got {policy!r} for table '{table}'."
            )
    if expiry is not None and eviction is None:
        raise errors.ArgumentError(
            f"`expiry` of table '{table}' needs an `eviction` policy, which "
            "judges the rows; got none."
        )
    return {
        "admission": admission.policy_text() if admission else "",
        "missing_value": admission.value if admission else None,
        "eviction": eviction.policy_text() if eviction else "",
    }


def check_policies(
    *,
    admission: Any = None,
    eviction: Any = None,
    expiry: Any = None,
    max_size: Any = None,
    num_shards: int = 1,
    table: str,
) -> None:
    """Checks policies and bound as the table's constructor does.

    Raises:
      The errors of `policy_options`, `check_bounded_admission` and
      `shard_bounds`.
    """
    admission = as_admission(admission)
    policy_options(admission, eviction, expiry, table)
    check_bounded_admission(max_size, admission, table)
    shard_bounds(max_size, eviction, num_shards, table)


def check_drawn_alone(policies: Sequence[Any], table: str) -> None:
    """Refuses policies for a table whose initial rows a Python function draws.

    Training inserts those rows before the update op runs, so the policies of
    the op would never see a new key.

    Raises:
      tfembed.errors.UnsupportedError: there is a policy.
    """
    if any(policy is not None for policy in policies):
        raise errors.UnsupportedError(
            f"Table '{table}' has a function with a `seed` as initializer, and "
            "cannot have `admission`, `eviction`, `expiry` or `max_size` too. "
            "Leave them out, or take an initializer of a known form."
        )


def check_bounded_admission(max_size: Any, admission: Any, table: str) -> None:
    """Refuses a bound together with an admission that may exceed it.

    Raises:
      tfembed.errors.UnsupportedError: `max_size` with BloomAdmission.
    """
    if max_size is not None and isinstance(admission, BloomAdmission):
        raise errors.UnsupportedError(
            f"Table '{table}' cannot have `max_size` with BloomAdmission: keys "
            "that share its counters may be admitted together, beyond the "
            "bound. Use CountAdmission, or leave one of them out."
        )


def shard_bounds(
    max_size: Any, eviction: Any, num_shards: int, table: str
) -> list[int]:
    """Splits `max_size` into a bound per shard; 0 for each if it is None.

    Raises:
      tfembed.errors.ArgumentError: not an integer, less than one key per shard,
        or no eviction policy.
    """
    if max_size is None:
        return [0] * num_shards
    owner = f"table '{table}', one key a shard"
    bound = checks.integer(max_size, "max_size", least=num_shards, owner=owner)
    if eviction is None:
        raise errors.ArgumentError(
            f"`max_size` of table '{table}' needs an `eviction` policy, which "
            "says what goes; got none."
        )
    share, rest = divmod(bound, num_shards)
    return [share + (i < rest) for i in range(num_shards)]


# Conversion of a batch's keys and values to tensors of a table's dtypes.
#
# A tensor of values must have the dtype already; a tensor of keys may have
# narrower integers. Numbers of Python and NumPy are converted within their
# kind: integers that fit to integers, integers and floats to floats.

Error = type[errors.TfembedError]


def key_tensor(
    keys: Any, dtype: tf.DType, table: str, error: Error = errors.DtypeError
) -> tf.Tensor:
    """Converts `keys` of any shape to a tensor of `dtype`.

    Args:
      keys: a tensor, a tf.Variable, or numbers; lists may hold tensors. Tensors
        of a narrower integer dtype are cast (int32 to int64).
      dtype: the dtype of the table's keys.
      table: the table's name, for errors.
      error: the exception class to raise.

    Raises:
      error: keys of another dtype, or numbers that do not fit into it.
    """
    if not (isinstance(keys, tf.Tensor) and keys.dtype == dtype):
        if not _is_tensor(keys) and _holds_tensors(keys):
            keys = tf.convert_to_tensor(keys)
        if _is_tensor(keys):
            keys = widened(keys, dtype)
    return _tensor(keys, dtype, f"Keys of table '{table}'", error)


def widened(keys: Any, dtype: tf.DType) -> Any:
    """Casts the tensor `keys` to `dtype` if that is a wider integer dtype."""
    own = tf.as_dtype(keys.dtype)
    if (
        own == dtype
        or not (own.is_integer and dtype.is_integer)
        or own.min < dtype.min
        or own.max > dtype.max
    ):
        return keys
    return tf.cast(keys, dtype)


def value_tensor(
    values: Any, dtype: tf.DType, table: str, error: Error = errors.DtypeError
) -> tf.Tensor:
    """Converts `values` of any shape to a tensor, as `key_tensor` does."""
    return _tensor(values, dtype, f"Values of table '{table}'", error)


def exists_tensor(exists: Any, table: str) -> tf.Tensor:
    """Converts a lookup's `exists` to a bool tensor; refuses numbers.

    Raises:
      tfembed.errors.DtypeError: `exists` has anything but booleans.
    """
    what = f"`exists` of table '{table}', as a lookup returns it,"
    return _tensor(exists, tf.bool, what, errors.DtypeError)


def _tensor(value: Any, dtype: tf.DType, what: str, error: Error) -> tf.Tensor:
    if isinstance(value, tf.Tensor) and value.dtype == dtype:
        return value
    if not _is_tensor(value) and _holds_tensors(value):
        value = tf.convert_to_tensor(value)
    if _is_tensor(value):
        if value.dtype != dtype:
            raise error(
                f"{what} must be {dtype.name}; got a tensor of dtype "
                f"{tf.as_dtype(value.dtype).name}. Cast it first."
            )
        return tf.convert_to_tensor(value)
    try:
        # NumPy's fixed-width strings would lose trailing zero bytes.
        array = np.asarray(value, object if dtype == tf.string else None)
        is_ragged = _has_lists(array)
    except ValueError:
        is_ragged = True
    if is_ragged:
        raise error(
            f"{what} must be an array, or lists of one length; got lists that "
            f"differ in length, {_shortened(value)}. Join them to one list."
        )
    if array.size and not _fits(array, dtype):
        raise error(
            f"{what} must be {_nature(dtype)}; got {_misfit(array, dtype)}."
        )
    return tf.constant(array.astype(dtype.as_numpy_dtype), dtype)


def _holds_tensors(value: Any) -> bool:
    """Says whether a structure has tensors; skips arrays, which are long."""
    return not isinstance(value, np.ndarray) and any(
        map(_is_tensor, tf.nest.flatten(value))
    )


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or isinstance(value, tf.Variable)


def _fits(array: np.ndarray[Any, Any], dtype: tf.DType) -> bool:
    if dtype == tf.string:
        return all(isinstance(x, (str, bytes)) for x in array.ravel())
    if array.dtype == dtype.as_numpy_dtype:
        return True
    if dtype.is_floating:
        return array.dtype.kind in "iuf"
    if not dtype.is_integer or array.dtype.kind not in "iu":
        return False
    if array.dtype == np.uint64:
        return False
    return dtype.min <= int(array.min()) and int(array.max()) <= dtype.max


def _has_lists(array: np.ndarray[Any, Any]) -> bool:
    """Says whether NumPy left lists of different lengths in an array."""
    return array.dtype == object and any(
        isinstance(x, (list, tuple, np.ndarray)) for x in array.flat
    )


def _nature(dtype: tf.DType) -> str:
    if dtype == tf.string:
        return "strings"
    if dtype.is_floating:
        return f"numbers of {dtype.name}"
    natures = "integers" if dtype.is_integer else "booleans"
    return f"{natures} of {dtype.name}"


def _misfit(array: np.ndarray[Any, Any], dtype: tf.DType) -> str:
    """Names the element that does not fit, or else the dtype of the array."""
    if dtype == tf.string:
        others = (x for x in array.flat if not isinstance(x, (str, bytes)))
        one = next(others)
        return f"{_shortened(one)}, of {type(one).__name__}"
    if array.dtype == object:
        others = (x for x in array.flat if not isinstance(x, numbers.Real))
        one = next(others, array.flat[0])
        return f"{_shortened(one)}, of {type(one).__name__}"
    if array.dtype.kind in "iu" and dtype.is_integer:
        low, high = int(array.min()), int(array.max())
        if low < dtype.min or high > dtype.max:
            return f"{low if low < dtype.min else high}, of {array.dtype}"
        return f"{array.dtype}: cast them"
    return str(array.dtype)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_TRAINED = ("float32", "float16", "bfloat16")

_VALUES_OF_KEYS = {
    "int64": (
        "float32",
        "float16",
        "bfloat16",
        "int32",
        "int8",
        "int64",
        "float64",
        "string",
    ),
    "int32": ("float32", "int32", "float64", "bfloat16"),
    "string": (
        "float32",
        "float16",
        "bfloat16",
        "int32",
        "int8",
        "int64",
        "float64",
        "bool",
    ),
}


def table_dtypes(key_dtype: Any, value_dtype: Any) -> tuple[tf.DType, tf.DType]:
    """Returns the dtypes of a table's keys and values, checked.

    Args:
      key_dtype, value_dtype: dtypes, or values that `tf.as_dtype` takes.

    Raises:
      tfembed.errors.DtypeError: a pair that tables do not support; the text
        lists the pairs that they do.
    """
    try:
        keys, values = tf.as_dtype(key_dtype), tf.as_dtype(value_dtype)
    except TypeError:
        raise _no_such_pair(repr(key_dtype), repr(value_dtype)) from None
    if values.name not in _VALUES_OF_KEYS.get(keys.name, ()):
        raise _no_such_pair(keys.name, values.name)
    return keys, values


def check_trained(value_dtype: tf.DType, name: str) -> None:
    """Raises DtypeError if rows of `value_dtype` cannot be trained.

    Args:
      value_dtype: the dtype of the rows.
      name: the table's name.
    """
    if value_dtype.name not in _TRAINED:
        raise errors.DtypeError(
            f"Table '{name}' has rows of {value_dtype.name}; only those of "
            f"{', '.join(_TRAINED)} can be trained. Read and upsert them instead."
        )


def _no_such_pair(keys: str, values: str) -> errors.DtypeError:
    valid = ", ".join(
        f"{key}-{value}"
        for key, those in _VALUES_OF_KEYS.items()
        for value in those
    )
    return errors.DtypeError(
        f"key_dtype-value_dtype {keys}-{values} is not supported; valid "
        f"combinations: {valid}."
    )
