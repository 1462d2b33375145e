"""The interface of engines: the seam between TPUEmbedding and its tables.

An engine is made with (owner, plan, options, shapes): the trackable object that
saves its tables, the features and tables that are its own, how it works, and
the output shapes of its features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.held_variable import HeldVariable
from tfembed.embedding.features.inputs import InputSpec
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.host.tables import HostTable, TableSize
from tfembed.embedding.replicas import ReplicaInputs
from tfembed.embedding.steps.batch_queue import Batch
from tfembed.embedding.steps.step_forms import StepName
from tfembed.embedding.steps.step_queue import QueueBound

__all__ = ["Engine", "EngineOptions", "TakesInputs"]


class Engine(Protocol):
    """Looks up and updates the tables of one plan.

    A replica is known by its number; inside of strategy.run of a TPUStrategy,
    where one trace serves all replicas, it is `replicas.THIS_REPLICA`.

    Attributes:
      tables: one per table of the plan.
    """

    tables: Any

    def enqueue(
        self,
        name: StepName,
        batches: Mapping[int, Batch],
    ) -> None:
        """Takes batches in, by replica.

        Raises:
          tfembed.errors.ArgumentError: they are read otherwise than before.
        """

    def is_idle(self, name: StepName) -> bool:
        """Whether no batch is on its way under a name, nor a function uses it.

        Eager only.
        """

    def forget(self, name: StepName) -> None:
        """Forgets an idle name; eager."""

    def specs(self, name: StepName) -> list[InputSpec]:
        """How the features that are enqueued under `name` are read.

        Raises:
          tfembed.errors.StateError: nothing was.
        """

    def dequeue(self, replica: int, name: StepName) -> list[tf.Tensor]:
        """Returns each feature's activations for the oldest batch enqueued."""

    def apply_gradients(
        self,
        names: Sequence[StepName],
        gradients: Sequence[Sequence[tf.Tensor]],
    ) -> None:
        """Updates the tables, by names per replica and gradients per feature too.

        Under a TPUStrategy each replica calls it, with its own alone.
        """

    def look_up(
        self, features: Sequence[Any], plans: Sequence[Any]
    ) -> list[tf.Tensor]:
        """The activations of FeatureIds that no queue holds."""

    def update(
        self,
        features: Sequence[Any],
        plans: Sequence[Any],
        gradients: Sequence[tf.Tensor],
    ) -> None:
        """Trains the tables for FeatureIds that no queue holds."""

    def flush(self) -> None:
        """Applies the update that waits for the next step."""

    def reset(self) -> None:
        """Forgets all batches on their way; eager only."""

    def sizes(self) -> list[TableSize]:
        """Returns what each table holds and takes; eager only."""

    @property
    def resources(self) -> list[Any]:
        """The resources that functions hold beside the tables."""

    @property
    def held_variables(self) -> list[HeldVariable]:
        """The variables of static tables that ops take by their handles."""

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns the most rounds of each exchange, by its tables; eager."""


class TakesInputs(Protocol):
    """An engine whose enqueue reads the users' tensors as they are.

    Instead of batches it takes inputs, and its gradients have the shape of the
    activations. Its class is known by the method METHOD.
    """

    METHOD: ClassVar[str] = "enqueue_inputs"

    tables: list[HostTable]

    def enqueue_inputs(
        self,
        name: StepName,
        training: bool,
        per_replica: Sequence[ReplicaInputs],
        shapes: OutputShapes,
    ) -> None:
        """Takes batches in; `shapes` are the output shapes."""

    def retrieve(self) -> None:
        """Brings `tables` up to the last step; eager only."""

    def load(self) -> None:
        """Takes over what `tables` hold now; eager only."""


_NONFINITE = ("skip", "refuse", "allow")


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How an engine works.

    Attributes:
      nonfinite: "skip", "refuse" or "allow" (`ops.grouped_update`).
      bound: how many batches may wait.
      is_pipelined: whether updates run beside the next step (`pipeline.py`).

    Raises:
      tfembed.errors.ArgumentError: another `nonfinite`.
    """

    nonfinite: str
    bound: QueueBound
    is_pipelined: bool

    def __post_init__(self) -> None:
        if self.nonfinite not in _NONFINITE:
            raise errors.ArgumentError(
                f"`nonfinite` must be one of {_NONFINITE}; got "
                f"{self.nonfinite!r}."
            )
