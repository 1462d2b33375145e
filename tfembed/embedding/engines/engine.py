"""The interface of engines, between TPUEmbedding and its tables.

An engine is constructed with (owner, plan, options, shapes): the trackable
object that saves its tables, the plan of its features and tables, its
EngineOptions, and the output shapes of its features. A new engine is a class
that has all of `Engine`, and a line in `engines/choice.py`.
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

__all__ = ["Engine", "EngineOptions", "Entry"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A step's input, as one engine takes it.

    Attributes:
      training: whether apply_gradients follows.
      inputs: each replica's tensors as users gave them.
      shapes: the output shapes.
      batches: by replica, the inputs as checked batches of ids; {} for an
        engine that takes the users' tensors.
    """

    training: bool
    inputs: Sequence[ReplicaInputs]
    shapes: OutputShapes
    batches: Mapping[int, Batch]


class Engine(Protocol):
    """Looks up and updates the tables of one plan.

    A replica is identified by its index; inside of strategy.run of a
    TPUStrategy, where one trace serves all replicas, by
    `replicas.THIS_REPLICA`.

    Attributes:
      takes_inputs: whether it takes the users' tensors unchanged, and gradients
        in the shape of the activations.
      tables: one HostTable per table of the plan.
    """

    takes_inputs: ClassVar[bool]

    @property
    def tables(self) -> list[HostTable]:
        """One HostTable per table of the plan."""

    def hands_on_at_trace(self) -> bool:
        """Says whether the traced function passes batches on by itself.

        Then the three calls of a step are a part of it, and no queue has its
        batches.
        """

    def enqueue(self, name: StepName, entry: Entry) -> None:
        """Enqueues a batch for each replica.

        Raises:
          tfembed.errors.ArgumentError: the specs differ from earlier batches'.
        """

    def waiting(self, replica: int, name: StepName) -> int:
        """Counts the batches that wait for dequeue; eager only."""

    def drop_idle(self, replica: int, name: StepName) -> None:
        """Drops the dequeued batch, which needs no gradients; eager only."""

    def is_idle(self, name: StepName) -> bool:
        """Says whether a name has no pending batch and no function uses it.

        Eager only.
        """

    def forget(self, name: StepName) -> None:
        """Frees the queues of an idle name; eager only."""

    def specs(self, name: StepName) -> list[InputSpec]:
        """Returns the InputSpec of each feature enqueued under `name`.

        Raises:
          tfembed.errors.StateError: nothing was enqueued under it.
        """

    def dequeue(self, replica: int, name: StepName) -> list[tf.Tensor]:
        """Returns each feature's activations for the oldest batch enqueued."""

    def apply_gradients(
        self,
        names: Sequence[StepName],
        gradients: Sequence[Sequence[tf.Tensor]],
    ) -> None:
        """Updates the tables by each replica's name and gradients per feature.

        Under a TPUStrategy each replica calls it with only its own ones.
        """

    def look_up(
        self, features: Sequence[Any], plans: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Looks up FeatureIds without a queue; returns the activations."""

    def update(
        self,
        features: Sequence[Any],
        plans: Sequence[Any],
        gradients: Sequence[tf.Tensor],
    ) -> None:
        """Updates the tables for FeatureIds without a queue."""

    def flush(self) -> None:
        """Applies the update that waits for the next step."""

    def retrieve(self) -> None:
        """Copies the current rows into `tables`; eager only."""

    def load(self) -> None:
        """Loads the rows of `tables` into the engine; eager only."""

    def reset(self) -> None:
        """Drops all pending batches; eager only."""

    def sizes(self) -> list[TableSize]:
        """Returns the rows and bytes of each table; eager only."""

    @property
    def resources(self) -> list[Any]:
        """Returns the resources that functions capture, besides the tables."""

    @property
    def held_variables(self) -> list[HeldVariable]:
        """Returns the variables of static tables that ops take as handles."""

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns the most rounds of each exchange, by table names; eager."""


_NONFINITE = ("skip", "refuse", "allow")


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """The options of an engine.

    Attributes:
      nonfinite: "skip", "refuse" or "allow" (`ops.grouped_update`).
      bound: how many batches may wait.
      is_pipelined: whether updates run beside the next step (`pipeline.py`).

    Raises:
      tfembed.errors.ArgumentError: an unknown `nonfinite`.
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
