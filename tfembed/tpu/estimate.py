"""Estimates the cost of a model's tables on TPUs, without a TPU."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import checks, errors
from tfembed.config.custom_combiner import is_custom
from tfembed.embedding.plan import EmbeddingPlan, make_plan
from tfembed.embedding.xla.entries import Entries, entries_of_matrix
from tfembed.embedding.xla.program import TablesProgram
from tfembed.embedding.xla.stack import StackRows, stacks_of
from tfembed.ops import FeaturePlan, exchange
from tfembed.units import as_bytes

__all__ = [
    "Estimate",
    "MEMORY",
    "TablesStep",
    "Topology",
    "estimate",
    "ids_per_sample",
]

# Bytes of a chip's memory (HBM), from Google Cloud's pages of each version.
MEMORY = {
    "v4": 32 << 30,
    "v5e": 16 << 30,
    "v5p": 95 << 30,
    "v6e": 32 << 30,
}

_RATE = 0.01  # The time of a step does not depend on the rate.


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips of one kind, and their layout.

    Attributes:
      name: "kind:AxB" or "kind:AxBxC".

    Raises:
      tfembed.errors.ArgumentError: the form or the kind is unknown.
    """

    name: str

    def __post_init__(self) -> None:
        match = re.fullmatch(r"(\w+):(\d+(?:x\d+){1,2})", self.name)
        if not match or match[1] not in MEMORY or not self.chips:
            raise errors.ArgumentError(
                f"`topology` must be a kind of TPU, {', '.join(MEMORY)}, and "
                "how its chips are laid out, as in 'v5e:4x4' or 'v5p:4x4x4'; "
                f"got {self.name!r}."
            )

    @property
    def kind(self) -> str:
        """The version of the chips."""
        return self.name.partition(":")[0]

    @property
    def chips(self) -> int:
        """The number of chips."""
        return math.prod(map(int, self.name.partition(":")[2].split("x")))

    @property
    def memory(self) -> int:
        """The bytes of memory of one chip."""
        return MEMORY[self.kind]


WHEELS = ("jax[tpu]==0.10.2", "libtpu==0.0.42.1")

_COMPILER = pathlib.Path(__file__).with_name("compiler.py")


def estimate(
    feature_config: Any,
    optimizer: Any = None,
    *,
    topology: str,
    batch_size: int,
    ids: int | Mapping[str, int] = 1,
    python: str | os.PathLike[str] | None = None,
) -> Estimate:
    """Estimates memory and time of a model's table lookups and updates on TPUs.

    The real TPU compiler compiles the step for the topology; no TPU is needed.
    Tables are sharded over the chips as by `TPUEmbedding(engine="xla")`. The
    model between the activations and their gradients is not included.

        print(tfembed.tpu.estimate(features, tfembed.Adagrad(0.1),
                                   topology="v5p:4x4x4", batch_size=2048))

    Args:
      feature_config, optimizer: as for TPUEmbedding.
      topology: the kind of the chips and their layout, for instance "v5e:4x4".
      batch_size: the number of samples of one chip.
      ids: the number of ids of a sample, for all features or by the feature's
        name; for sequences it is `max_sequence_length`.
      python: the path of a Python with the wheels `jax[tpu]` and `libtpu`;
        None: this Python.

    Raises:
      tfembed.errors.ArgumentError: the compiler does not know the topology,
        the tables exceed the memory of all chips, a table has no vocabulary,
        a number is below 1, `ids` has an unknown feature, or `python` is not
        found.
      tfembed.errors.UnsupportedError: wheels or XLA kernels are missing, or
        engine="xla" cannot hold a table.
    """
    where = Topology(topology)
    plan = make_plan(feature_config, optimizer)
    batch_size = checks.integer(batch_size, "batch_size", least=1)
    ids = _numbers_of_ids(plan, ids)
    _check(plan)
    step = TablesStep(plan, where.chips, batch_size, ids_per_sample(plan, ids))
    held = step.table_bytes()
    if held > where.memory:
        raise errors.ArgumentError(
            f"Tables and slots take {held:,} bytes of each of the "
            f"{where.chips} chips of {topology!r}, {held * where.chips:,} in "
            f"all; a chip has {where.memory:,}. Use more chips, smaller tables "
            "or an optimizer with fewer slots."
        )
    missing = exchange.why_missing()
    if missing:
        raise errors.UnsupportedError(
            f"An estimate needs tfembed's XLA kernels. {missing}"
        )
    answer = _compiled(step, topology, _python(python))
    fits = "error" not in answer and answer["bytes"] <= where.memory
    return Estimate(
        topology=topology,
        chips=where.chips,
        fits=fits,
        bytes_per_chip=answer.get("bytes", held),
        memory_per_chip=where.memory,
        table_bytes_per_chip=held,
        interconnect_bytes=answer.get("interconnect"),
        seconds=answer.get("seconds"),
        not_estimated=answer.get("unknown"),
    )


def _python(given: str | os.PathLike[str] | None) -> str:
    found = shutil.which(sys.executable if given is None else os.fspath(given))
    if found is None:
        raise errors.ArgumentError(
            "`python` must be the path of a Python; got "
            f"{os.fspath(given or '')!r}."
        )
    return os.path.abspath(found)  # noqa: PTH100 - a link stays a link.


def _numbers_of_ids(
    plan: EmbeddingPlan, ids: int | Mapping[str, int]
) -> int | dict[str, int]:
    if not isinstance(ids, Mapping):
        return checks.integer(ids, "ids", least=1)
    unknown = sorted(set(ids) - set(plan.paths))
    if unknown:
        raise errors.ArgumentError(
            f"`ids` has the unknown features {unknown}; the features are "
            f"{sorted(plan.paths)}."
        )
    return {
        name: checks.integer(count, f"ids[{name!r}]", least=1)
        for name, count in ids.items()
    }


def _check(plan: EmbeddingPlan) -> None:
    for config, rule in zip(plan.tables, plan.optimizers, strict=True):
        if config.vocabulary_size is None:
            raise errors.ArgumentError(
                f"Table {config.name!r} has no vocabulary_size: it lives in "
                "host memory on a TPU too. Leave its features out."
            )
        if is_custom(config.combiner) or (
            rule and (not rule.is_fused or rule.norm_limit)
        ):
            raise errors.UnsupportedError(
                f"Table {config.name!r} has a CustomCombiner, a "
                "CustomOptimizer, or an optimizer with clipnorm or "
                "global_clipnorm, which engine='xla' does not compile. Leave "
                "its features out."
            )


def _compiled(step: TablesStep, topology: str, python: str) -> dict[str, Any]:
    """Runs the compiler; returns {"error": ...} if the step does not fit."""
    with tempfile.TemporaryDirectory() as folder:
        module = pathlib.Path(folder) / "step.mlir"
        module.write_text(step.stablehlo())
        result = subprocess.run(
            [
                str(python),
                str(_COMPILER),
                str(module),
                topology,
                str(step.state),
            ],
            # Not a folder of this package, which would be at the top of its
            # sys.path.
            cwd=folder,
            text=True,
            capture_output=True,
            check=False,
        )
    try:
        answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        raise errors.UnsupportedError(
            f"The TPU compiler ended with {result.returncode} and no answer:\n"
            f"{result.stderr[-2000:]}"
        ) from None
    wheels = " ".join(f'"{wheel}"' for wheel in WHEELS)
    if "missing" in answer or "libtpu" in answer.get("error", ""):
        why = answer.get("missing") or answer["error"]
        raise errors.UnsupportedError(
            f"An estimate needs the wheels {wheels}: {why}. Install them with "
            f"`python -m pip install {wheels}`, in this environment or in one "
            "whose Python you give as `python`."
        )
    if "error" in answer and "RESOURCE_EXHAUSTED" not in answer["error"]:
        raise errors.ArgumentError(
            f"The TPU compiler refuses topology={topology!r}: {answer['error']}"
        )
    return answer


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The costs of a training step of all tables, from the TPU compiler.

    Attributes:
      topology: the topology of the TPUs.
      chips: the number of chips.
      fits: whether a chip has the memory for a step.
      bytes_per_chip: the bytes of a step: tables, slots, inputs, outputs,
        temporaries, code. If the compiler refuses the step as too large, only
        tables and slots; `interconnect_bytes`, `seconds` and `not_estimated`
        are then None.
      memory_per_chip: the memory of a chip.
      table_bytes_per_chip: the bytes for tables and slots among these.
      interconnect_bytes: the bytes that a chip sends in a step of one round.
      seconds: the compiler's estimate of a step of one round, without the
        model.
      not_estimated: the number of ops without an estimate; `seconds` excludes
        them.
    """

    topology: str
    chips: int
    fits: bool
    bytes_per_chip: int
    memory_per_chip: int
    table_bytes_per_chip: int
    interconnect_bytes: int | None
    seconds: float | None
    not_estimated: int | None

    def to_json(self) -> str:
        """Returns all attributes as a JSON object."""
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        """Returns the estimate as a table of text."""
        rows = {
            "topology": f"{self.topology} ({self.chips} chips)",
            "fits": "yes" if self.fits else "no",
            "memory": f"{as_bytes(self.bytes_per_chip)} of "
            f"{as_bytes(self.memory_per_chip)} a chip",
            "tables and slots": f"{as_bytes(self.table_bytes_per_chip)} a chip",
        }
        if self.seconds is not None and self.interconnect_bytes is not None:
            rows["time of a step"] = f"{self.seconds * 1e6:.0f} us estimated"
            rows["sent"] = (
                f"{as_bytes(self.interconnect_bytes)} a chip and step"
            )
        if self.not_estimated:
            rows["not estimated"] = f"{self.not_estimated} parts of the step"
        width = max(map(len, rows))
        return "\n".join(
            f"{name:{width}}  {value}" for name, value in rows.items()
        )


class TablesStep:
    """Looks up all features, and updates their tables by given gradients.

    Args:
      plan: a plan of static tables with fused rules.
      replicas: the number of replicas.
      batch_size: the number of samples of a replica.
      lengths: for each feature, the number of ids of a sample.
    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        replicas: int,
        batch_size: int,
        lengths: Sequence[int],
    ) -> None:
        self._plan = plan
        self._batch = batch_size
        self._lengths = lengths
        self._program = TablesProgram(
            plan.tables, stacks_of(plan, replicas, portable=True)
        )
        self._shapes = [stack.shapes() for stack in self._program.stacks]

    def table_bytes(self) -> int:
        """The bytes of tables and slots of one replica."""
        return sum(
            4 * rows * width
            for shapes in self._shapes
            for rows, width in shapes
        )

    @property
    def state(self) -> int:
        """The number of first inputs that are also outputs."""
        return sum(map(len, self._shapes))

    def stablehlo(self) -> str:
        """Returns the step as StableHLO, XLA's portable text.

        Raises:
          tfembed.errors.UnsupportedError: this TensorFlow cannot write it.
        """
        function = tf.function(
            self._run, jit_compile=True, input_signature=self._specs()
        )
        lower = function.experimental_get_compiler_ir(*self._specs())
        try:
            return str(lower(stage="stablehlo"))
        except ValueError as error:
            raise errors.UnsupportedError(
                f"TensorFlow {tf.__version__} does not write programs as "
                f"StableHLO, which the TPU compiler reads. Use 2.20. ({error})"
            ) from None

    def _specs(self) -> list[tf.TensorSpec]:
        """Specs of tables and slots; then ids, weights, gradient by feature."""
        specs = [
            tf.TensorSpec(shape) for shapes in self._shapes for shape in shapes
        ]
        for i, feature in enumerate(self._plan.features):
            shape = [self._batch, self._lengths[i]]
            specs += [tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape)]
            positions = shape[1:] if feature.max_sequence_length else []
            specs.append(
                tf.TensorSpec([self._batch, *positions, self._plan.dim(i)])
            )
        return specs

    def _run(self, *inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the new tables and slots, then the activations."""
        state, features = list(inputs[: self.state]), inputs[self.state :]
        rows = {}
        for s, shapes in enumerate(self._shapes):
            values, *slots = state[: len(shapes)]
            rows[s] = StackRows(values, tuple(slots))
            del state[: len(shapes)]
        entries = [
            self._entries(i, *features[3 * i : 3 * i + 2])
            for i in range(len(self._plan.features))
        ]
        looked = self._program.look_up(rows, entries)
        updated = self._program.update(
            rows, entries, features[2::3], [_RATE] * len(self._plan.tables)
        )
        new: list[tf.Tensor] = []
        for s, old in rows.items():
            kept = updated.get(s, old)
            new += [kept.values, *kept.slots]
        return [*new, *looked.activations]

    def _entries(self, i: int, ids: tf.Tensor, weights: tf.Tensor) -> Entries:
        feature = self._plan.features[i]
        config = self._plan.tables[self._plan.table_ids[i]]
        length = feature.max_sequence_length
        plan = FeaturePlan(self._plan.table_ids[i], config.combiner, length)
        is_single = self._lengths[i] == 1 and not length
        return entries_of_matrix(
            ids, None if is_single else weights, plan, config.vocabulary_size
        )


def ids_per_sample(
    plan: EmbeddingPlan, given: int | Mapping[str, int]
) -> list[int]:
    """Returns each feature's ids per sample: the sequence length, or given."""
    return [
        feature.max_sequence_length
        or (given if isinstance(given, int) else given.get(path, 1))
        for feature, path in zip(plan.features, plan.paths, strict=True)
    ]
