"""The host engine under a TPUStrategy: a TPU's step asks its host for rows.

    on the host     enqueue -> [enqueued] -> look up -> hold -> [in flight]
                                                |                   |
    on the TPU                             activations -> model -> gradients
                                                                    |
    on the host                        update of all replicas <- [gradients]

The ops on the host inside of the TPU's step are compiled outside of it
(`tf.compat.v1.tpu.outside_compilation`). One trace serves all replicas, so the
queues of a replica are selected by its index at run time. All tables are on the
first host; the first replica updates them for all after each has pushed its
gradients, and then signals the others to go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tfembed import errors, ops
from tfembed.checkpoint.held_variable import HeldVariable
from tfembed.embedding.engines.engine import EngineOptions, Entry
from tfembed.embedding.features import inputs
from tfembed.embedding.features.inputs import InputSpec, lookup_plans
from tfembed.embedding.features.output_shapes import OutputShapes, with_shape
from tfembed.embedding.host.engine import HostEngine
from tfembed.embedding.host.tables import HostTable, TableSize
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import THIS_REPLICA, ReplicaInputs
from tfembed.embedding.steps.batch_queue import HOST, Batch, BatchQueue
from tfembed.embedding.steps.named_steps import NamedSteps
from tfembed.embedding.steps.step_forms import StepName
from tfembed.embedding.steps.step_queue import StepQueue

__all__ = ["TpuHostEngine"]


class TpuHostEngine:
    """Looks up and updates on the host of the first replica.

    Args:
      owner, plan: as in the host engine.
      options: as in the host engine, not pipelined.
      shapes: not used.

    Raises:
      tfembed.errors.UnsupportedError: pipelined options.
    """

    takes_inputs: ClassVar[bool] = True

    def __init__(
        self,
        owner: Any,
        plan: EmbeddingPlan,
        options: EngineOptions,
        shapes: OutputShapes | None = None,
    ) -> None:
        del shapes
        if options.is_pipelined:
            raise errors.UnsupportedError(
                "pipeline_execution_with_tensor_core=True is not in this "
                f"release for table {plan.tables[0].name!r}, which lives in "
                "host memory under a TPUStrategy. Leave it out."
            )
        self._plan = plan
        self._replicas, self._host = _replicas_and_host(
            tf.distribute.get_strategy()
        )
        self._steps = NamedSteps(plan, options.bound, waits=True)
        # Held while threads that trace make queues.
        self._making = threading.Lock()
        self._gradients: dict[StepName, list[BatchQueue]] = {}
        self._updated: dict[StepName, Any] = {}
        with tf.device(self._host):
            self._engine = HostEngine(owner, plan, options)

    @property
    def tables(self) -> list[HostTable]:
        """The HostTables, one per table of the plan."""
        return self._engine.tables

    def hands_on_at_trace(self) -> bool:
        """Returns False: batches wait on the host."""
        return False

    def enqueue(self, name: StepName, entry: Entry) -> None:
        """Enqueues inputs.

        Raises:
          The errors of `TPUEmbedding.enqueue`.
        """

        def put(one: ReplicaInputs) -> Any:
            batch = Batch(
                entry.training,
                *inputs.read_batch(one.values, one.weights, entry.shapes),
            )
            self._steps.settle_specs(name, [batch])
            return self._queue(one.replica, name).put(batch)

        for one in entry.inputs:
            self._on_host(put, one)

    def waiting(self, replica: int, name: StepName) -> int:
        """Counts the batches that wait for dequeue; eager only."""
        return int(self._steps.queue(replica, name).size())

    def drop_idle(self, replica: int, name: StepName) -> None:
        """Drops the dequeued batch, which needs no gradients; eager only."""
        self._steps.queue(replica, name).drop_idle()

    def is_idle(self, name: StepName) -> bool:
        """Returns False: a TPU's step may be on its way to the queues."""
        return False

    def forget(self, name: StepName) -> None:
        """Does nothing: no name is idle."""

    def dequeue(self, replica: int, name: StepName) -> list[tf.Tensor]:
        """Returns each feature's activations for the oldest batch."""
        specs = self._steps.specs(name)
        plans = lookup_plans(self._plan, specs)

        def look_up(replica: int) -> list[tf.Tensor]:
            queue = self._queue(replica, name)
            batch = queue.take()
            found = self._engine.look_up(batch.features, plans)
            # Keep only a batch whose lookup succeeded.
            with tf.control_dependencies(found):
                held = queue.hold(batch)
            with tf.control_dependencies([] if held is None else [held]):
                return [tf.identity(one) for one in found]

        activations = self._on_host(look_up, replica)
        for i, one in enumerate(activations):
            one.set_shape(specs[i].activation_shape(self._plan.dim(i)))
        return [tf.stop_gradient(one) for one in activations]

    def apply_gradients(
        self,
        names: Sequence[StepName],
        gradients: Sequence[Sequence[tf.Tensor]],
    ) -> None:
        """Updates the tables once all replicas have called it.

        Args:
          names: the name of this replica's dequeue, in a list.
          gradients: this replica's gradients, in a list, in the shape of the
            activations.

        Raises:
          tfembed.errors.StateError: as `HostEngine.apply_gradients`.
        """
        (name,) = names
        tensors = self._op_gradients(name, gradients[0])
        tensors.append(self._engine.rates())
        self._make_meeting(name, tensors)

        def give(replica: tf.Tensor, *tensors: tf.Tensor) -> Any:
            batch = self._queue(THIS_REPLICA, name, replica).finish()
            given = BatchQueue.chosen(self._gradients[name], replica).push(
                batch, tensors
            )
            with tf.control_dependencies([] if given is None else [given]):
                done = tf.cond(
                    tf.equal(replica, 0),
                    lambda: self._update_for_all(name),
                    lambda: tf.constant(True),
                )
            with tf.control_dependencies([done]):
                return self._updated[name].dequeue()

        self._on_host(give, _this_replica(), *tensors)

    def flush(self) -> None:
        """Does nothing: no update waits."""

    def reset(self) -> None:
        """Drops all pending batches; eager only."""
        self._steps.clear()
        for queues in self._gradients.values():
            for queue in queues:
                queue.clear()

    def retrieve(self) -> None:
        """Does nothing: `tables` are the host's tables."""

    def load(self) -> None:
        """Does nothing: `tables` are the host's tables."""

    def look_up(
        self, features: Sequence[Any], plans: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Raises UnsupportedError: layers' batches have no static shape."""
        raise errors.UnsupportedError(
            "Lookups by a layer are not in this release under a TPUStrategy. "
            "Use enqueue, dequeue and apply_gradients."
        )

    def update(
        self,
        features: Sequence[Any],
        plans: Sequence[Any],
        gradients: Sequence[tf.Tensor],
    ) -> None:
        """Raises UnsupportedError, as `look_up`."""
        self.look_up(features, plans)

    def specs(self, name: StepName) -> list[InputSpec]:
        """Returns the InputSpec of each feature enqueued under `name`."""
        return self._steps.specs(name)

    @property
    def resources(self) -> list[Any]:
        """Returns []: functions of a TPU reach the host by its ops."""
        return []

    @property
    def held_variables(self) -> list[HeldVariable]:
        """Returns []: functions of a TPU capture no handle of the host."""
        return []

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """Returns {}: there is no exchange."""
        return {}

    def sizes(self) -> list[TableSize]:
        """Returns the rows and bytes of each table; eager only."""
        return self._engine.sizes()

    def _on_host(self, function: Callable[..., Any], *arguments: Any) -> Any:
        def on_host(*arguments: Any) -> Any:
            with ops.on_host(), tf.device(self._host), tf.device(HOST):
                return function(*arguments)

        if tf.distribute.in_cross_replica_context():
            return on_host(*arguments)
        return tf.compat.v1.tpu.outside_compilation(on_host, *arguments)

    def _queue(
        self, replica: int, name: StepName, number: tf.Tensor | None = None
    ) -> StepQueue:
        if replica != THIS_REPLICA:
            return self._steps.queue(replica, name)
        with self._making:
            queues = [self._steps.queue(r, name) for r in range(self._replicas)]
        return StepQueue.chosen(
            queues, _this_replica() if number is None else number
        )

    def _op_gradients(
        self, name: StepName, gradients: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        return [
            with_shape(gradient, one.activation_shape(self._plan.dim(i)))
            for i, (gradient, one) in enumerate(
                zip(gradients, self.specs(name), strict=True)
            )
        ]

    def _make_meeting(
        self, name: StepName, tensors: Sequence[tf.Tensor]
    ) -> None:
        """Makes the queues in which replicas push gradients and wait."""
        shapes = [tensor.shape for tensor in tensors]
        with (
            self._making,
            tf.init_scope(),
            tf.device(self._host),
            tf.device(HOST),
        ):
            if name in self._gradients:
                return
            self._gradients[name] = [
                BatchQueue(self._steps.specs(name), shapes)
                for _ in range(self._replicas)
            ]
            self._updated[name] = tf.queue.FIFOQueue(-1, [tf.bool])

    def _update_for_all(self, name: StepName) -> tf.Tensor:
        features: list[Any] = []
        gradients: list[tf.Tensor] = []
        # In the order of the replicas, not of arrival.
        steps = [queue.pop() for queue in self._gradients[name]]
        for batch, tensors in steps:
            features += batch.features
            gradients += tensors[:-1]
        plans = lookup_plans(self._plan, self.specs(name)) * self._replicas
        rates = steps[0][1][-1]
        self._engine.update(features, plans, gradients, rates)
        with tf.control_dependencies(_all_operations()):
            go = self._updated[name].enqueue_many(
                [tf.ones([self._replicas], tf.bool)]
            )
        with tf.control_dependencies([] if go is None else [go]):
            return tf.constant(True)


def _all_operations() -> list[Any]:
    """Returns the operations of the function that is being traced."""
    if tf.executing_eagerly():
        return []
    return list(tf.compat.v1.get_default_graph().get_operations())


def _this_replica() -> tf.Tensor:
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def _replicas_and_host(strategy: tf.distribute.Strategy) -> tuple[int, str]:
    """Returns the number of replicas, and job and task of the first host."""
    spec = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0])
    host = spec.replace(device_type=None, device_index=None)
    return int(strategy.num_replicas_in_sync), str(host.to_string())
