"""The queues of an engine, by the name of a step and by replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.features import inputs
from tfembed.embedding.features.inputs import InputSpec
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.steps.batch_queue import Batch
from tfembed.embedding.steps.pipeline import (
    LookupAhead,
    UpdateBehind,
    warn_of_early_flush,
)
from tfembed.embedding.steps.step_forms import StepName, user_name
from tfembed.embedding.steps.step_queue import QueueBound, StepQueue

__all__ = ["NamedSteps"]

Update = Callable[[StepName, Batch, list[tf.Tensor]], None]


class NamedSteps:
    """The steps of each name, and their batches.

    Args:
      plan: the features and tables.
      bound: the bound of the batches that wait per name and replica.
      waits: whether early calls wait (`StepQueue`).
    """

    def __init__(
        self, plan: EmbeddingPlan, bound: QueueBound, *, waits: bool = False
    ) -> None:
        self._plan = plan
        self._bound = bound
        self._waits = waits
        self._specs: dict[StepName, list[InputSpec]] = {}
        self._queues: dict[StepName, dict[int, StepQueue]] = {}
        self._ahead: dict[StepName, dict[int, LookupAhead]] = {}
        self._behind: dict[StepName, UpdateBehind] = {}
        self._in_functions: set[StepName] = set()
        self._free: dict[tuple[str, tuple[InputSpec, ...]], list[Any]] = {}

    def settle_specs(self, name: StepName, batches: Iterable[Batch]) -> None:
        """Sets the specs of a name's batches, or checks that they are the same.

        Raises:
          tfembed.errors.ArgumentError: they differ among the batches, or from
            earlier batches.
        """
        known = self._specs.get(name)
        for batch in batches:
            if known is None:
                known = list(batch.specs)
            elif batch.specs != known:
                inputs.check_same_specs(self._plan.paths, known, batch.specs)
        if known is not None:
            self._specs[name] = known
        self._note_use(name)

    def specs(self, name: StepName) -> list[InputSpec]:
        """Returns the InputSpec of each feature enqueued under `name`.

        Raises:
          tfembed.errors.StateError: nothing was enqueued under it.
        """
        if name not in self._specs:
            raise errors.StateError(
                f"Nothing was enqueued {_label(name)} yet. Call enqueue, or "
                "trace the function that does, before dequeue and "
                "apply_gradients."
            )
        return self._specs[name]

    def one_of(self, names: Sequence[StepName]) -> StepName:
        """Returns one of `names`, after a check that all have equal specs.

        Raises:
          tfembed.errors.StateError: nothing was enqueued under a name.
          tfembed.errors.ArgumentError: the specs differ.
        """
        known = self.specs(names[0])
        for name in names[1:]:
            inputs.check_same_specs(self._plan.paths, known, self.specs(name))
        return names[0]

    def queue(self, replica: int, name: StepName) -> StepQueue:
        """Returns a replica's queue of batches."""
        queues = self._queues.setdefault(name, {})
        if replica in queues and tf.executing_eagerly():
            return queues[replica]
        specs = self.specs(name)
        self._note_use(name)
        if replica not in queues:
            queue = StepQueue(
                specs,
                label=f"{_label(name)} on replica {replica}",
                bound=self._bound,
                waits=self._waits,
                drops_unfinished=user_name(name) is not None,
            )
            # If two threads get here, both use the first queue.
            queues.setdefault(replica, queue)
        return queues[replica]

    def ahead(self, replica: int, name: StepName) -> LookupAhead:
        """Returns a replica's queue of activations that are looked up ahead."""
        of_replicas = self._ahead.setdefault(name, {})
        if replica not in of_replicas:
            shapes = [
                one.activation_shape(self._plan.dim(i))
                for i, one in enumerate(self.specs(name))
            ]
            ahead: LookupAhead = self._free_or(
                "ahead", name, lambda: LookupAhead(self.specs(name), shapes)
            )
            of_replicas.setdefault(replica, ahead)
        return of_replicas[replica]

    def behind(
        self, name: StepName, tensors: Sequence[tf.Tensor], replicas: int
    ) -> UpdateBehind:
        """Returns the queue of the pending update, with tensors like these."""
        if name not in self._behind:
            shapes = [tensor.shape for tensor in tensors]
            specs = self.specs(name) * replicas
            behind: UpdateBehind = self._free_or(
                "behind", name, lambda: UpdateBehind(specs, shapes)
            )
            self._behind.setdefault(name, behind)
        return self._behind[name]

    def flush(self, update: Update) -> None:
        """Applies the pending updates of all names."""
        if not self._behind and not tf.executing_eagerly():
            warn_of_early_flush()
        for name in list(self._behind):
            self._flush_one(name, update)

    def flush_if_new(self, name: StepName, update: Update) -> None:
        """Applies pending updates of other names before a new eager name.

        Else they would stay pending if each step has a new name.
        """
        if name in self._behind or not tf.executing_eagerly():
            return
        for other in list(self._behind):
            if other not in self._in_functions:
                self._flush_one(other, update)

    def _flush_one(self, name: StepName, update: Update) -> None:
        self._behind[name].flush(lambda *step: update(name, *step))

    def is_idle(self, name: StepName) -> bool:
        """Says whether a name has no pending batch and no function uses it.

        Eager only.
        """
        return name not in self._in_functions and all(
            one.is_idle() for _, one in self._of_name(name)
        )

    def forget(self, name: StepName) -> None:
        """Frees an idle name; other names reuse its queues of a pipelined step.

        TensorFlow never frees these queues, of 35 KB each.
        """
        for kind, one in self._of_name(name):
            one.clear()
            if kind != "queue":
                key = kind, tuple(self.specs(name))
                self._free.setdefault(key, []).append(one)
        kept: list[dict[StepName, Any]] = [
            self._queues,
            self._ahead,
            self._behind,
            self._specs,
        ]
        for known in kept:
            known.pop(name, None)

    def _of_name(self, name: StepName) -> list[tuple[str, Any]]:
        """Returns the objects of a name, with the names of their classes."""
        found: list[tuple[str, Any]] = []
        found += [("queue", one) for one in self._queues.get(name, {}).values()]
        found += [("ahead", one) for one in self._ahead.get(name, {}).values()]
        if name in self._behind:
            found.append(("behind", self._behind[name]))
        return found

    def _free_or(
        self, kind: str, name: StepName, make: Callable[[], Any]
    ) -> Any:
        """Reuses an object of a freed name with equal specs, or makes one."""
        free = self._free.get((kind, tuple(self.specs(name))))
        # Steps without a name check more, and are never freed.
        return free.pop() if free and user_name(name) is not None else make()

    def _note_use(self, name: StepName) -> None:
        if not tf.executing_eagerly():
            self._in_functions.add(name)

    def clear(self) -> None:
        """Drops all batches, but no pending updates; eager only."""
        for one in [*_all_of(self._queues), *_all_of(self._ahead)]:
            one.clear()

    @property
    def resources(self) -> list[Any]:
        """Returns the queues' resources, which exported functions capture."""
        holders: list[Any] = [
            *_all_of(self._queues),
            *_all_of(self._ahead),
            *self._behind.values(),
        ]
        return [resource for one in holders for resource in one.resources]


def _all_of(by_name: dict[StepName, dict[int, Any]]) -> list[Any]:
    return [one for each in list(by_name.values()) for one in each.values()]


def _label(name: StepName) -> str:
    name = user_name(name)
    return "without a name" if name is None else f"under the name {name!r}"
