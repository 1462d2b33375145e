"""The engines of one TPUEmbedding: routes each feature to its table's engine.

Most objects have one engine, to which all calls pass unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.checkpoint.held_variable import HeldVariable
from tfembed.embedding.engines.choice import EngineChoices, engine_class
from tfembed.embedding.engines.engine import Engine, EngineOptions, Entry
from tfembed.embedding.features import inputs
from tfembed.embedding.features.output_shapes import (
    OutputShapes,
    check_gradient,
    op_gradient,
)
from tfembed.embedding.host.tables import HostTable, TableSize
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import ReplicaInputs
from tfembed.embedding.steps.batch_queue import Batch
from tfembed.embedding.steps.step_forms import StepName

__all__ = ["EngineGroup", "EngineRouter", "engine_groups"]


# Engines that have another class under a TPUStrategy.
_ON_TPU = {"host": "tpu_host", "xla": "tpu_xla"}


@dataclasses.dataclass(frozen=True)
class EngineGroup:
    """The features and tables of one engine.

    Attributes:
      engine: the engine's name in the registry.
      features, tables: indices into all features and tables of the embedding.
      takes_inputs: whether the engine takes the users' tensors unchanged.
      has_all: whether this is the only engine.
    """

    engine: str
    features: tuple[int, ...]
    tables: tuple[int, ...]
    takes_inputs: bool = False
    has_all: bool = False

    def pick(self, values: Sequence[Any]) -> list[Any]:
        """Picks this engine's values from a list with one value per feature."""
        return [values[i] for i in self.features]

    def read(
        self,
        training: bool,
        per_replica: Sequence[ReplicaInputs],
        shapes: OutputShapes,
    ) -> Entry:
        """Reads and checks this engine's part of a step's input.

        Args:
          training: whether apply_gradients follows.
          per_replica: the inputs of all features.
          shapes: the output shapes of all features.

        Raises:
          The errors of `inputs.read_batch`.
        """
        own, own_shapes = per_replica, shapes
        if not self.has_all:
            own_shapes = shapes.subset(self.features)
            own = [
                dataclasses.replace(
                    one,
                    values=self.pick(one.values),
                    weights=self.pick(one.weights),
                )
                for one in per_replica
            ]
        batches = {}
        if not self.takes_inputs:
            for one in own:
                batches[one.replica] = Batch(
                    training,
                    *inputs.read_batch(one.values, one.weights, own_shapes),
                )
        return Entry(training, own, own_shapes, batches)


def engine_groups(
    plan: EmbeddingPlan, choices: EngineChoices
) -> tuple[EngineGroup, ...]:
    """Returns the features and tables of each engine in use."""
    found = []
    # "tpu" comes before "xla": its ops stand at the head of a TPU's step.
    names = sorted({one.engine for one in choices.of_tables})
    for name in names:
        tables = tuple(
            i for i, one in enumerate(choices.of_tables) if one.engine == name
        )
        features = tuple(
            i for i, table in enumerate(plan.table_ids) if table in tables
        )
        # On a TPU's host the engine is called from inside of the TPU's step.
        engine = _ON_TPU.get(name, name) if choices.on_tpu else name
        takes_inputs = engine_class(engine).takes_inputs
        has_all = len(names) == 1
        found.append(
            EngineGroup(engine, features, tables, takes_inputs, has_all)
        )
    return tuple(found)


class EngineRouter:
    """Splits steps between engines and merges their activations.

    Args:
      owner: the trackable object that saves the tables.
      plan: all features and tables.
      groups: the features and tables of each engine.
      options: the options of the engines.
      shapes: the output shapes, as far as they are known.
    """

    def __init__(
        self,
        owner: Any,
        plan: EmbeddingPlan,
        groups: Sequence[EngineGroup],
        options: EngineOptions,
        shapes: OutputShapes,
    ) -> None:
        self._plan = plan
        self._engines: list[tuple[EngineGroup, Engine]] = [
            (
                group,
                engine_class(group.engine)(
                    owner,
                    plan.subset(group.tables),
                    options,
                    shapes.subset(group.features),
                ),
            )
            for group in groups
        ]

    @property
    def tables(self) -> list[HostTable]:
        """The rows and slots of each table of the plan."""
        found: dict[int, HostTable] = {}
        for group, engine in self._engines:
            found.update(zip(group.tables, engine.tables, strict=True))
        return [found[i] for i in range(len(found))]

    def form_of(self, entries: Sequence[Entry]) -> Hashable:
        """Returns the form of a batch; all batches of a queue have one form."""
        return tuple(
            [
                tuple(next(iter(entry.batches.values())).specs)
                if entry.batches
                else None
                for entry in entries
            ]
        )

    def waiting(self, replica: int, step: StepName) -> int:
        """Counts batches that wait for dequeue; eager, for host engines."""
        return self._engines[0][1].waiting(replica, step)

    def drop_idle(self, replica: int, step: StepName) -> None:
        """Drops the dequeued batch; raises if it needs gradients."""
        for _, engine in self._engines:
            engine.drop_idle(replica, step)

    def forget(self, steps: Sequence[StepName]) -> bool:
        """Frees the queues of steps if all are idle; returns whether; eager."""
        engines = [engine for _, engine in self._engines]
        if not all(one.is_idle(step) for one in engines for step in steps):
            return False
        for one in engines:
            for step in steps:
                one.forget(step)
        return True

    def enqueue(self, name: StepName, entries: Sequence[Entry]) -> None:
        """Enqueues the results of each `EngineGroup.read` for a batch.

        Raises:
          tfembed.errors.ArgumentError: the specs differ from earlier batches'.
        """
        for (_, engine), entry in zip(self._engines, entries, strict=True):
            engine.enqueue(name, entry)

    def dequeue(self, replica: int, name: StepName) -> list[tf.Tensor]:
        """Returns each feature's activations for the oldest batch."""
        if len(self._engines) == 1:
            return list(self._engines[0][1].dequeue(replica, name))
        found: dict[int, tf.Tensor] = {}
        for group, engine in self._engines:
            activations = engine.dequeue(replica, name)
            found.update(zip(group.features, activations, strict=True))
        return [found[i] for i in range(len(found))]

    def read_gradients(
        self, name: StepName, gradients: Sequence[Any], shapes: OutputShapes
    ) -> list[tf.Tensor]:
        """Checks one replica's gradients and converts them for the engines.

        Raises:
          tfembed.errors.ArgumentError: not a tensor, or another shape.
          tfembed.errors.DtypeError: not real numbers.
          tfembed.errors.StateError: nothing was enqueued under this name.
        """
        expected = []
        for gradient, shape, dim, path in zip(
            gradients,
            shapes.shapes,
            self._plan.feature_dims,
            self._plan.paths,
            strict=True,
        ):
            expected.append(shape.concatenate(dim))
            check_gradient(gradient, expected[-1], path)
        found: dict[int, tf.Tensor] = {}
        for group, engine in self._engines:
            lengths = [0] * len(group.features)
            if not group.takes_inputs:
                specs = engine.specs(name)
                lengths = [one.sequence_length for one in specs]
            for i, length in zip(group.features, lengths, strict=True):
                found[i] = op_gradient(
                    gradients[i],
                    expected[i],
                    sequence_length=length,
                    path=self._plan.paths[i],
                    keeps_shape=group.takes_inputs,
                )
        return [found[i] for i in range(len(found))]

    def apply_gradients(
        self,
        names: Sequence[StepName],
        gradients: Sequence[Sequence[tf.Tensor]],
    ) -> None:
        """Updates the tables of all engines."""
        for group, engine in self._engines:
            own = gradients
            if not group.has_all:
                own = [group.pick(one) for one in gradients]
            engine.apply_gradients(names, own)

    def look_up(
        self, features: Sequence[Any], plans: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Looks up FeatureIds without a queue; returns the activations."""
        found: dict[int, tf.Tensor] = {}
        for engine, indices, own in self._split(plans):
            activations = engine.look_up([features[i] for i in indices], own)
            found.update(zip(indices, activations, strict=True))
        return [found[i] for i in range(len(found))]

    def update(
        self,
        features: Sequence[Any],
        plans: Sequence[Any],
        gradients: Sequence[tf.Tensor],
    ) -> None:
        """Updates the tables for FeatureIds without a queue."""
        for engine, indices, own in self._split(plans):
            engine.update(
                [features[i] for i in indices],
                own,
                [gradients[i] for i in indices],
            )

    def flush(self) -> None:
        """Applies the updates that wait for the next step."""
        for _, engine in self._engines:
            engine.flush()

    def retrieve(self) -> None:
        """Copies the current rows into `tables`, after `flush`; eager only."""
        for _, engine in self._engines:
            engine.retrieve()

    def load(self) -> None:
        """Loads the rows of `tables` into the engines; eager only."""
        for _, engine in self._engines:
            engine.load()

    def reset(self) -> None:
        """Drops all pending batches; eager only."""
        for _, engine in self._engines:
            engine.reset()

    @property
    def resources(self) -> list[Any]:
        """Returns the resources that functions capture, besides the tables."""
        return [
            resource
            for _, engine in self._engines
            for resource in engine.resources
        ]

    @property
    def held_variables(self) -> list[HeldVariable]:
        """Returns the variables of static tables that ops take as handles."""
        return [
            held
            for _, engine in self._engines
            for held in engine.held_variables
        ]

    def sizes(self) -> list[TableSize]:
        """Returns the rows and bytes of each table; eager only."""
        found: dict[int, TableSize] = {}
        for group, engine in self._engines:
            found.update(zip(group.tables, engine.sizes(), strict=True))
        return [found[i] for i in range(len(found))]

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns the most rounds of each exchange, by table names; eager."""
        found: dict[tuple[str, ...], int] = {}
        for _, engine in self._engines:
            found.update(engine.exchange_rounds())
        return found

    def _split(
        self, plans: Sequence[Any]
    ) -> list[tuple[Engine, list[int], list[Any]]]:
        """Lists engines in use, the indices of their features, and plans."""
        split = []
        for group, engine in self._engines:
            indices = [
                i for i, p in enumerate(plans) if p.table in group.tables
            ]
            if not indices:
                continue
            own = [
                dataclasses.replace(
                    plans[i], table=group.tables.index(plans[i].table)
                )
                for i in indices
            ]
            split.append((engine, indices, own))
        return split
