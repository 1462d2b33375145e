"""The engines of one TPUEmbedding: each feature goes to its table's.

Most objects have one engine, to which everything passes as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.checkpoint.held_variable import HeldVariable
from tfembed.embedding.engines.choice import EngineChoices, engine_class
from tfembed.embedding.engines.engine import Engine, TakesShares
from tfembed.embedding.features import activations as shaping
from tfembed.embedding.features import inputs
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.host.tables import HostTable, TableSize
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import ReplicaShare
from tfembed.embedding.steps.batch_queue import Batch
from tfembed.embedding.steps.step_forms import StepName

__all__ = ["EnginePlaces", "EngineRouter", "places_of"]


# Engines that are others under a TPUStrategy.
_ON_TPU = {"host": "tpu_host", "xla": "tpu_xla"}


@dataclasses.dataclass(frozen=True)
class EnginePlaces:
    """An engine, and the places of its features and tables in the whole.

    Attributes:
      engine: its name in the registry.
      features, tables: the places.
      takes_shares: whether the engine reads the users' tensors as they are.
      has_all: whether no other engine has any.
    """

    engine: str
    features: tuple[int, ...]
    tables: tuple[int, ...]
    takes_shares: bool = False
    has_all: bool = False

    def pick(self, values: Sequence[Any]) -> list[Any]:
        """Picks this engine's values from a list with one value per feature."""
        return [values[i] for i in self.features]

    def read(
        self,
        training: bool,
        shares: Sequence[ReplicaShare],
        shapes: OutputShapes,
    ) -> tuple[Any, ...]:
        """Reads and checks all that the engine's enqueue takes after the name.

        Args:
          training: whether apply_gradients follows.
          shares: the replicas' parts of a batch, of all features.
          shapes: the output shapes of all features.

        Raises:
          As `inputs.read_batch`.
        """
        own, own_shapes = shares, shapes
        if not self.has_all:
            own_shapes = shapes.part(self.features)
            own = [
                dataclasses.replace(
                    share,
                    values=self.pick(share.values),
                    weights=self.pick(share.weights),
                )
                for share in shares
            ]
        if self.takes_shares:
            return (training, own, own_shapes)
        batches, formats = {}, []
        for share in own:
            ids, read = inputs.read_batch(
                share.values, share.weights, own_shapes
            )
            batches[share.replica] = Batch(training, ids)
            formats.append(read)
        return (batches, formats)


def places_of(
    plan: EmbeddingPlan, choices: EngineChoices
) -> tuple[EnginePlaces, ...]:
    """Per engine in use, what is its own."""
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
        # On a TPU's host the engine has to work from inside of the TPU's step.
        engine = _ON_TPU.get(name, name) if choices.on_tpu else name
        takes_shares = hasattr(engine_class(engine), TakesShares.METHOD)
        has_all = len(names) == 1
        found.append(
            EnginePlaces(engine, features, tables, takes_shares, has_all)
        )
    return tuple(found)


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """An engine, and what is its own."""

    engine: Any
    places: EnginePlaces


class EngineRouter:
    """Splits steps between engines and puts their activations together.

    Args:
      owner: the trackable object that saves the tables.
      plan: all features and tables.
      places: what is whose engine's.
      options: of the engines.
      shapes: the output shapes as far as they are known.
    """

    def __init__(
        self,
        owner: Any,
        plan: EmbeddingPlan,
        places: Sequence[EnginePlaces],
        options: Any,
        shapes: OutputShapes,
    ) -> None:
        self._plan = plan
        self._parts = [
            _Part(
                engine_class(one.engine)(
                    owner,
                    plan.part(one.tables),
                    options,
                    shapes.part(one.features),
                ),
                one,
            )
            for one in places
        ]

    @property
    def tables(self) -> list[HostTable]:
        """Per table of the plan, its rows and slots."""
        found: dict[int, HostTable] = {}
        for part in self._parts:
            found.update(
                zip(part.places.tables, part.engine.tables, strict=True)
            )
        return [found[i] for i in range(len(found))]

    def form_of(self, batches: Sequence[tuple[Any, ...]]) -> Hashable:
        """The form of all batches that one queue takes."""
        return tuple(
            [
                None if part.places.takes_shares else tuple(own[1][0])
                for part, own in zip(self._parts, batches, strict=True)
            ]
        )

    def waiting(self, replica: int, step: StepName) -> int:
        """How many batches wait for their dequeue; eager, of engines on the host."""
        return int(self._parts[0].engine.waiting(replica, step))

    def drop_idle(self, replica: int, step: StepName) -> None:
        """Drops the batch that was dequeued, or raises where it is trained."""
        for part in self._parts:
            part.engine.drop_idle(replica, step)

    def forget(self, steps: Sequence[StepName]) -> bool:
        """Forgets steps if nothing needs them, and returns whether; eager."""
        engines = [part.engine for part in self._parts]
        if any(part.places.takes_shares for part in self._parts) or not all(
            one.is_idle(step) for one in engines for step in steps
        ):
            return False
        for one in engines:
            for step in steps:
                one.forget(step)
        return True

    def enqueue(
        self, name: StepName, batches: Sequence[tuple[Any, ...]]
    ) -> None:
        """Takes a batch in: per engine what `EnginePlaces.read` made of it.

        Raises:
          tfembed.errors.ArgumentError: other formats than before.
        """
        for part, own in zip(self._parts, batches, strict=True):
            if part.places.takes_shares:
                part.engine.enqueue_shares(name, *own)
            else:
                part.engine.enqueue(name, *own)

    def dequeue(self, replica: int, name: StepName) -> list[tf.Tensor]:
        """Per feature, the activations of the oldest batch."""
        if len(self._parts) == 1:
            return list(self._parts[0].engine.dequeue(replica, name))
        found: dict[int, tf.Tensor] = {}
        for part in self._parts:
            activations = part.engine.dequeue(replica, name)
            found.update(zip(part.places.features, activations, strict=True))
        return [found[i] for i in range(len(found))]

    def read_gradients(
        self, name: StepName, gradients: Sequence[Any], shapes: OutputShapes
    ) -> list[tf.Tensor]:
        """Checks one replica's gradients, as the engines take them.

        Raises:
          tfembed.errors.ArgumentError: no tensor, or another shape.
          tfembed.errors.DtypeError: no real numbers.
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
            shaping.check_gradient(gradient, expected[-1], path)
        found: dict[int, tf.Tensor] = {}
        for part in self._parts:
            lengths = [0] * len(part.places.features)
            if not part.places.takes_shares:
                formats = part.engine.formats(name)
                lengths = [one.sequence_length for one in formats]
            for i, length in zip(part.places.features, lengths, strict=True):
                found[i] = shaping.op_gradient(
                    gradients[i],
                    expected[i],
                    sequence_length=length,
                    path=self._plan.paths[i],
                    keeps_shape=part.places.takes_shares,
                )
        return [found[i] for i in range(len(found))]

    def apply_gradients(
        self,
        names: Sequence[StepName],
        gradients: Sequence[Sequence[tf.Tensor]],
    ) -> None:
        """Updates all tables, as each engine does."""
        for part in self._parts:
            own = gradients
            if not part.places.has_all:
                own = [part.places.pick(one) for one in gradients]
            part.engine.apply_gradients(names, own)

    def look_up(
        self, features: Sequence[Any], plans: Sequence[Any]
    ) -> list[tf.Tensor]:
        """The activations of FeatureIds that no queue holds."""
        found: dict[int, tf.Tensor] = {}
        for part, places, own in self._split(plans):
            activations = part.look_up([features[i] for i in places], own)
            found.update(zip(places, activations, strict=True))
        return [found[i] for i in range(len(found))]

    def update(
        self,
        features: Sequence[Any],
        plans: Sequence[Any],
        gradients: Sequence[tf.Tensor],
    ) -> None:
        """Trains the tables for FeatureIds that no queue holds."""
        for part, places, own in self._split(plans):
            part.update(
                [features[i] for i in places],
                own,
                [gradients[i] for i in places],
            )

    def flush(self) -> None:
        """Applies the updates that wait for the next step."""
        for part in self._parts:
            part.engine.flush()

    def retrieve(self) -> None:
        """Brings `tables` up to the last step, flushed before; eager only."""
        for part in self._parts:
            if part.places.takes_shares:
                part.engine.retrieve()

    def load(self) -> None:
        """Takes over what `tables` hold now; eager only."""
        for part in self._parts:
            if part.places.takes_shares:
                part.engine.load()

    def reset(self) -> None:
        """Forgets all batches on their way; eager only."""
        for part in self._parts:
            part.engine.reset()

    @property
    def resources(self) -> list[Any]:
        """The resources that functions hold beside the tables."""
        return [
            resource
            for part in self._parts
            if not part.places.takes_shares
            for resource in part.engine.resources
        ]

    @property
    def held_variables(self) -> list[HeldVariable]:
        """The variables of static tables that ops take by their handles."""
        return [
            held
            for part in self._parts
            if not part.places.takes_shares
            for held in part.engine.held_variables
        ]

    def sizes(self) -> list[TableSize]:
        """Per table what it holds and takes; eager only."""
        found: dict[int, TableSize] = {}
        for part in self._parts:
            found.update(
                zip(part.places.tables, part.engine.sizes(), strict=True)
            )
        return [found[i] for i in range(len(found))]

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """By tables that share an exchange, its most rounds so far; eager."""
        found: dict[tuple[str, ...], int] = {}
        for part in self._parts:
            found.update(part.engine.exchange_rounds())
        return found

    def _split(
        self, plans: Sequence[Any]
    ) -> list[tuple[Engine, list[int], list[Any]]]:
        """Per engine in use: the places of its features, and their plans."""
        split = []
        for part in self._parts:
            places = [
                i for i, p in enumerate(plans) if p.table in part.places.tables
            ]
            if not places:
                continue
            own = [
                dataclasses.replace(
                    plans[i], table=part.places.tables.index(plans[i].table)
                )
                for i in places
            ]
            split.append((part.engine, places, own))
        return split
