"""The tpu engine: tables in a TPU's embedding engine, by TensorFlow's ops.

This engine calls TensorFlow's own TPUEmbedding, which configures the hardware,
enqueues, receives and sends. It converts configs and checkpoints, whose keys
and values equal those of every other engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.held_variable import HeldVariable
from tfembed.embedding import private
from tfembed.embedding.engines.engine import EngineOptions, Entry
from tfembed.embedding.features.inputs import InputSpec
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.host.tables import HostTable, TableSize
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.private import Untracked
from tfembed.embedding.replicas import cores_of
from tfembed.embedding.steps.step_forms import StepName
from tfembed.embedding.tpu.tensorflow_configs import tensorflow_features

__all__ = ["TpuEngine", "TpuTable"]


class TpuTable(private.Folder):
    """Saves and restores the shards on the hosts.

    The owner retrieves rows from the hardware before a save. After a restore
    the new rows are loaded to the hardware.

    Args:
      sharded: a variable with one shard of consecutive rows per host.
      load: a function, called after a restore.
    """

    def __init__(self, sharded: Any, load: Callable[[], None]) -> None:
        self._sharded = Untracked(sharded)
        self._load = load

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        shards = [shard.read_value() for shard in self._sharded.value.variables]
        return {private.VARIABLE_VALUE: tf.concat(shards, 0)}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        rows = restored[private.VARIABLE_VALUE]
        sharded = self._sharded.value
        if not rows.shape.is_compatible_with(sharded.shape):
            raise errors.CheckpointError(
                f"The checkpoint has {rows.shape} for a table of shape "
                f"{sharded.shape}. Make the table as it was saved."
            )
        first = 0
        for shard in sharded.variables:
            count = shard.shape[0]
            shard.assign(rows[first : first + count])
            first += count
        self._load()


class TpuEngine:
    """Looks up and updates by TensorFlow's TPUEmbedding.

    A program has one at most: TensorFlow sets up the hardware for one.

    Args:
      owner: the trackable object that saves the tables.
      plan: the features and tables.
      options: the EngineOptions. `nonfinite` has no effect on the hardware.
      shapes: the output shapes, all known.

    Raises:
      tfembed.errors.StateError: a shape is not known.
      RuntimeError: (of TensorFlow) the TPU is set up for another object.
    """

    takes_inputs: ClassVar[bool] = True
    tables: list[HostTable]

    def __init__(
        self,
        owner: Any,
        plan: EmbeddingPlan,
        options: EngineOptions,
        shapes: OutputShapes,
    ) -> None:
        shapes.check_defined()
        self._plan = plan
        self._cores = cores_of(tf.distribute.get_strategy())
        self._theirs = tf.tpu.experimental.embedding.TPUEmbedding(
            tensorflow_features(plan),
            None,
            pipeline_execution_with_tensor_core=options.is_pipelined,
        )
        # A last dimension of 1 is not a sequence: the dimensions before it
        # remain.
        self._theirs.build([shape.concatenate(1) for shape in shapes.shapes])
        variables = private.variables_of(self._theirs)
        self.tables = [
            _tracked(owner, config.name, variables[config.name], self)
            for config in plan.tables
        ]

    def hands_on_at_trace(self) -> bool:
        """Returns False: the hardware has the batches."""
        return False

    def enqueue(self, name: StepName, entry: Entry) -> None:
        """Enqueues inputs.

        Raises:
          ValueError: (of TensorFlow) inside of strategy.run, an input that is
            not a direct argument of the function; an input on a TPU; weights
            that do not fit.
        """
        for one in entry.inputs:
            weights = one.weights
            self._theirs.enqueue(
                one.values,
                None if all(w is None for w in weights) else weights,
                entry.training,
                name,
                one.device,
            )

    def waiting(self, replica: int, name: StepName) -> int:
        """Raises UnsupportedError: the hardware does not count."""
        raise errors.UnsupportedError(
            "The TPU's embedding engine does not say how many batches wait. "
            "Give all batches of a name one batch size."
        )

    def drop_idle(self, replica: int, name: StepName) -> None:
        """Does nothing: the hardware keeps no batch without gradients."""

    def is_idle(self, name: StepName) -> bool:
        """Returns False: the hardware does not say what waits."""
        return False

    def forget(self, name: StepName) -> None:
        """Does nothing: no queue is here."""

    def specs(self, name: StepName) -> list[InputSpec]:
        """Raises UnsupportedError: the inputs are TensorFlow's to read."""
        raise errors.UnsupportedError(
            f"The inputs of step {name!r} went to the TPU unread."
        )

    def dequeue(self, replica: int, name: StepName) -> list[tf.Tensor]:
        """Returns each feature's activations."""
        del replica
        return list(self._theirs.dequeue(name))

    def apply_gradients(
        self,
        names: Sequence[StepName],
        gradients: Sequence[Sequence[tf.Tensor]],
    ) -> None:
        """Sends this replica's gradients.

        Raises:
          tfembed.errors.UnsupportedError: gradients of sequences, if a replica
            has several cores.
        """
        if self._cores > 1 and any(one.shape.rank > 2 for one in gradients[0]):
            raise errors.UnsupportedError(
                f"TensorFlow takes no gradients of rank 3 where a replica has "
                f"{self._cores} cores: it expects all dimensions but the last "
                "one to be theirs together. Use one core per replica, or train "
                "without sequence features and output shapes of several "
                "dimensions."
            )
        self._theirs.apply_gradients(list(gradients[0]), names[0])

    def retrieve(self) -> None:
        """Copies the hardware's rows into `tables`; eager only."""
        private.retrieve_variables(self._theirs)

    def load(self) -> None:
        """Loads the rows of `tables` to the hardware; eager only."""
        private.load_variables(self._theirs)

    def flush(self) -> None:
        """Does nothing: the hardware applies the last update before reads."""

    def reset(self) -> None:
        """Does nothing: enqueued batches are on the hardware."""

    def look_up(
        self, features: Sequence[Any], plans: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Raises UnsupportedError: the hardware looks up enqueued ids only."""
        raise errors.UnsupportedError(
            f"Table {self._plan.tables[0].name!r} lives in the TPU's embedding "
            "engine, which looks up what enqueue takes and nothing else. Make "
            "the object with engine='xla' or engine='host'."
        )

    def update(
        self,
        features: Sequence[Any],
        plans: Sequence[Any],
        gradients: Sequence[tf.Tensor],
    ) -> None:
        """Raises UnsupportedError, as `look_up`."""
        self.look_up(features, plans)

    @property
    def resources(self) -> list[Any]:
        """Returns []: functions capture the hardware's own."""
        return []

    @property
    def held_variables(self) -> list[HeldVariable]:
        """Returns []: no op of ours takes these variables."""
        return []

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns {}: the hardware's exchanges are not known here."""
        return {}

    def sizes(self) -> list[TableSize]:
        """Returns each table's rows and bytes, without counts of bad sums."""
        return [
            TableSize(
                config.vocabulary_size,
                4
                * config.vocabulary_size
                * config.dim
                * (1 + len(table.slots)),
                0,
            )
            for config, table in zip(
                self._plan.tables, self.tables, strict=True
            )
        ]


def _tracked(
    owner: Any, name: str, variables: dict[str, Any], engine: TpuEngine
) -> HostTable:
    """Tracks the table's variables under the names that all engines use."""
    slots = dict(variables)
    parameters = slots.pop("parameters")
    private.track(owner, name, TpuTable(parameters, engine.load))
    for slot, variable in slots.items():
        private.track(owner, f"{name}/{slot}", TpuTable(variable, engine.load))
    return HostTable(parameters, slots)
