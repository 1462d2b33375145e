"""Compares what a stock SavedModel and its source answer to the same inputs.

Each runs in a process of its own; that of the stock model cannot import
tfembed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfembed import errors

__all__ = [
    "OutputReport",
    "compared",
    "fitting",
    "read_inputs",
    "write_warm_up",
]

# What each process runs: the model and the folder of inputs and outputs are
# its arguments.
_PROGRAM = """
import importlib.abc, json, pathlib, sys

class NoTfembed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "tfembed":
            raise ImportError("this process checks a model without tfembed")

model, folder, package, *tags = sys.argv[1:]
folder = pathlib.Path(folder)
if package:
    sys.path.insert(0, package)
    import tfembed
else:
    sys.meta_path.insert(0, NoTfembed())
import tensorflow as tf

def read(name, dtype):
    text = tf.io.read_file(str(folder / name))
    return tf.io.parse_tensor(text, tf.as_dtype(dtype))

task = json.loads((folder / "task.json").read_text())
loaded = tf.saved_model.load(model, tags or None)
written = {}
for signature, inputs in task.items():
    given = {name: read(*file) for name, file in inputs.items()}
    outputs = loaded.signatures[signature](**given)
    for name, value in outputs.items():
        file = f"{bool(package)}-{len(written)}"
        tf.io.write_file(str(folder / file), tf.io.serialize_tensor(value))
        written[file] = [signature, name, value.dtype.name]
(folder / f"{bool(package)}.json").write_text(json.dumps(written))
"""


@dataclasses.dataclass(frozen=True)
class OutputReport:
    """An output of both models.

    Attributes:
      signature, output: the names.
      difference: the largest difference of two numbers; 0.0 where all are
        equal bit for bit.
      largest: the largest absolute value that the source gave.
    """

    signature: str
    output: str
    difference: float
    largest: float


def read_inputs(check: Any) -> dict[str, Any]:
    """Returns the inputs that a caller gave, by name.

    Raises:
      tfembed.errors.ArgumentError: there are none, or no such file.
    """
    if isinstance(check, str | os.PathLike):
        try:
            with np.load(check, allow_pickle=False) as file:
                check = {name: file[name] for name in file.files}
        except (OSError, ValueError, AttributeError) as error:
            raise errors.ArgumentError(
                f"`check` cannot be read: '{os.fspath(check)}' must be an .npz "
                f"file of arrays without pickled objects, strings as 'S' or "
                f"'U' ({error})."
            ) from None
    if not isinstance(check, Mapping) or not check:
        raise errors.ArgumentError(
            "`check` must be a dict of inputs by their names in a signature, "
            f"or the path of an .npz file; got {check!r}."
        )
    return dict(check)


def fitting(
    given: Mapping[str, Any],
    signatures: Mapping[str, Mapping[str, tf.TensorSpec]],
) -> dict[str, dict[str, tf.Tensor]]:
    """Returns the inputs as tensors, for each signature that has such inputs.

    Args:
      given: the inputs by name.
      signatures: the inputs of each signature.

    Raises:
      tfembed.errors.ArgumentError: no signature has inputs of these names, or
        a shape does not fit.
      tfembed.errors.DtypeError: a dtype does not fit.
    """
    names = [
        name for name, specs in signatures.items() if specs.keys() == set(given)
    ]
    if not names:
        known = "; ".join(
            f"'{name}' has {sorted(specs)}"
            for name, specs in signatures.items()
        )
        raise errors.ArgumentError(
            f"`check` has the inputs {sorted(given)}, which are those of no "
            f"signature: {known}."
        )
    return {
        name: {
            tensor: _as_tensor(given[tensor], spec, f"'{tensor}' of '{name}'")
            for tensor, spec in signatures[name].items()
        }
        for name in names
    }


def _as_tensor(value: Any, spec: tf.TensorSpec, name: str) -> tf.Tensor:
    try:
        with tf.device("/CPU:0"):
            if not tf.is_tensor(value) and spec.dtype != tf.string:
                array = np.asarray(value)
                wanted = spec.dtype.as_numpy_dtype
                if np.can_cast(array.dtype, wanted, "same_kind"):
                    value = array.astype(wanted)
            tensor = tf.convert_to_tensor(value, spec.dtype)
    except (TypeError, ValueError) as error:
        raise errors.DtypeError(
            f"`check` must have {spec.dtype.name} for input {name}: {error}"
        ) from None
    if not spec.shape.is_compatible_with(tensor.shape):
        raise errors.ArgumentError(
            f"`check` must have the shape {spec.shape} for input {name}; got "
            f"{tensor.shape}."
        )
    return tensor


def compared(
    source: pathlib.Path,
    target: pathlib.Path,
    inputs: Mapping[str, Mapping[str, tf.Tensor]],
    tags: Iterable[str] | None = None,
) -> tuple[OutputReport, ...]:
    """Runs both models, one after the other, and compares their outputs.

    Args:
      source: the SavedModel with ops of tfembed.
      target: the one without.
      inputs: the inputs of signatures.
      tags: the tags of the graph; None: the models have one.

    Raises:
      tfembed.errors.UnsupportedError: a model does not run on the inputs; the
        text has the last words of its process.
    """
    with tempfile.TemporaryDirectory(prefix="tfembed-check-") as name:
        folder = pathlib.Path(name)
        task: dict[str, dict[str, tuple[str, str]]] = {}
        for signature, tensors in inputs.items():
            files = task[signature] = {}
            for tensor, value in tensors.items():
                file = f"input-{len(task)}-{len(files)}"
                text = tf.io.serialize_tensor(value)
                tf.io.write_file(str(folder / file), text)
                files[tensor] = (file, value.dtype.name)
        (folder / "task.json").write_text(json.dumps(task))
        ours = _outputs(source, folder, tags or (), with_tfembed=True)
        stock = _outputs(target, folder, tags or (), with_tfembed=False)
    return tuple(
        OutputReport(*output, *_difference(value, stock[output]))
        for output, value in ours.items()
    )


def _outputs(
    model: pathlib.Path,
    folder: pathlib.Path,
    tags: Iterable[str],
    *,
    with_tfembed: bool,
) -> dict[tuple[str, str], npt.NDArray[Any]]:
    """Runs a model's signatures in a process; returns their outputs."""
    package = pathlib.Path(__file__).parents[2] if with_tfembed else ""
    _run(_PROGRAM, str(model.resolve()), str(folder), str(package), *tags)
    written = json.loads((folder / f"{with_tfembed}.json").read_text())
    outputs = {}
    for file, (signature, name, dtype) in written.items():
        with tf.device("/CPU:0"):
            text = tf.io.read_file(str(folder / file))
            value = tf.io.parse_tensor(text, tf.as_dtype(dtype))
        outputs[signature, name] = value.numpy()
    return outputs


def _run(program: str, *arguments: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        # A folder without modules, since it is at the top of sys.path.
        cwd=arguments[1],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        text=True,
        capture_output=True,
        check=False,
    )
    if ran.returncode:
        raise errors.UnsupportedError(
            f"The model '{arguments[0]}' does not run on the inputs of `check`: "
            f"{ran.stderr[-2000:].strip()}"
        )


def _difference(
    one: npt.NDArray[Any], other: npt.NDArray[Any]
) -> tuple[float, float]:
    """Returns the largest difference, and the largest number of the first."""
    if one.dtype == object or one.dtype == bool:
        same = one.shape == other.shape and bool(np.all(one == other))
        return 0.0 if same else np.inf, 0.0
    largest = float(np.max(np.abs(one.astype(np.float64)), initial=0.0))
    if one.shape != other.shape:
        return np.inf, largest
    if one.tobytes() == other.tobytes():
        return 0.0, largest
    apart = one.astype(np.float64) - other.astype(np.float64)
    apart[np.isnan(one) & np.isnan(other)] = 0
    apart[one == other] = 0  # Infinities, for instance.
    return float(np.max(np.nan_to_num(np.abs(apart), nan=np.inf))), largest


def write_warm_up(
    folder: pathlib.Path,
    model: str,
    inputs: Mapping[str, Mapping[str, tf.Tensor]],
) -> None:
    """Writes requests that TensorFlow Serving answers before it serves.

    These are messages `PredictionLog` of the server's public API, a record
    each, put together here: few programs have the package of its messages.

    Args:
      folder: the SavedModel.
      model: the name of the model.
      inputs: the inputs of signatures.
    """
    extra = folder / "assets.extra"
    extra.mkdir(exist_ok=True)
    path = extra / "tf_serving_warmup_requests"
    before = path.read_bytes() if path.is_file() else b""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, tensors in inputs.items():
            request = _field(  # model_spec { name, signature_name }
                1, _field(1, model.encode()) + _field(3, signature.encode())
            )
            for name, value in tensors.items():
                proto = tf.make_tensor_proto(value).SerializeToString()
                # A pair of the map `inputs`.
                request += _field(
                    2, _field(1, name.encode()) + _field(2, proto)
                )
            # predict_log { request }
            writer.write(_field(6, _field(1, request)))
    path.write_bytes(before + path.read_bytes())


def _field(number: int, text: bytes) -> bytes:
    """Returns a field of a protocol buffer, of the wire type of lengths."""
    head = bytes([number << 3 | 2])
    size = len(text)
    while size >= 0x80:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + text
