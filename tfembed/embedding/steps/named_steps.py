"""The queues of an engine: by the name of a step, and by replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.features import step_format
from tfembed.embedding.features.step_format import StepFormat
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.steps.batch_queue import Batch, BatchForm
from tfembed.embedding.steps.pipeline import LookupAhead, UpdateBehind
from tfembed.embedding.steps.step_forms import StepName, user_name
from tfembed.embedding.steps.step_queue import QueueBound, StepQueue

__all__ = ["NamedSteps"]

Update = Callable[[StepName, Batch, list[tf.Tensor]], None]


class NamedSteps:
    """What is known of the steps of each name, and their batches.

    Args:
      plan: the features and tables.
      bound: how many batches of a name and replica may wait.
      waits: whether calls that come too early wait (`StepQueue`).
    """

    def __init__(
        self, plan: EmbeddingPlan, bound: QueueBound, *, waits: bool = False
    ) -> None:
        self._plan = plan
        self._bound = bound
        self._waits = waits
        self._formats: dict[StepName, list[StepFormat]] = {}
        self._queues: dict[StepName, dict[int, StepQueue]] = {}
        self._ahead: dict[tuple[int, StepName], LookupAhead] = {}
        self._behind: dict[StepName, UpdateBehind] = {}
        self._in_functions: set[StepName] = set()
        self._free: dict[BatchForm, list[StepQueue]] = {}

    def settle_formats(
        self, name: StepName, formats: Sequence[list[StepFormat]]
    ) -> None:
        """Takes note of how batches of a name are read.

        Raises:
          tfembed.errors.ArgumentError: they differ, or from those before.
        """
        known = self._formats.get(name, formats[0])
        for one in formats:
            step_format.check_same_format(self._plan.paths, known, one)
        self._formats.setdefault(name, known)
        self._note_use(name)

    def formats(self, name: StepName) -> list[StepFormat]:
        """How the features that are enqueued under `name` are read.

        Raises:
          tfembed.errors.StateError: nothing was.
        """
        if name not in self._formats:
            raise errors.StateError(
                f"Nothing was enqueued {_label(name)} yet. Call enqueue, or "
                "trace the function that does, before dequeue and "
                "apply_gradients."
            )
        return self._formats[name]

    def one_of(self, names: Sequence[StepName]) -> StepName:
        """A name whose batches are read as those of all `names`.

        Raises:
          tfembed.errors.StateError: nothing was enqueued under one of them.
          tfembed.errors.ArgumentError: their formats differ.
        """
        for name in names:
            step_format.check_same_format(
                self._plan.paths, self.formats(names[0]), self.formats(name)
            )
        return names[0]

    def queue(self, replica: int, name: StepName) -> StepQueue:
        """A replica's batches."""
        form = self.form(name)
        self._note_use(name)
        queues = self._queues.setdefault(name, {})
        if replica not in queues:
            queue = self._new_queue(
                form, f"{_label(name)} on replica {replica}", user_name(name)
            )
            # Of two threads that are here, both take the first one's.
            queues.setdefault(replica, queue)
        return queues[replica]

    def _new_queue(
        self, form: BatchForm, label: str, name: str | None
    ) -> StepQueue:
        free = self._free.get(form)
        if free and name is not None:  # Of names, as all that are free.
            queue = free.pop()
            queue.label = label
            return queue
        return StepQueue(
            form,
            label=label,
            bound=self._bound,
            waits=self._waits,
            drops_unfinished=name is not None,
        )

    def _note_use(self, name: StepName) -> None:
        if not tf.executing_eagerly():
            self._in_functions.add(name)

    def is_idle(self, name: StepName) -> bool:
        """Whether no batch is on its way under a name, nor a function uses it.

        Eager only; of steps that do not overlap.
        """
        queues = self._queues.get(name, {}).values()
        return name not in self._in_functions and all(
            queue.is_idle() for queue in queues
        )

    def forget(self, name: StepName) -> None:
        """Forgets an idle name; its queues serve others of its form."""
        for queue in self._queues.pop(name, {}).values():
            queue.clear()
            self._free.setdefault(self.form(name), []).append(queue)
        self._formats.pop(name, None)

    def ahead(self, replica: int, name: StepName) -> LookupAhead:
        """A replica's next activations."""
        key = (replica, name)
        if key not in self._ahead:
            shapes = [
                one.activation_shape(self._plan.dim(i))
                for i, one in enumerate(self.formats(name))
            ]
            self._ahead.setdefault(key, LookupAhead(self.form(name), shapes))
        return self._ahead[key]

    def behind(
        self, name: StepName, tensors: Sequence[tf.Tensor], replicas: int
    ) -> UpdateBehind:
        """The last update of all replicas, with tensors like these."""
        if name not in self._behind:
            shapes = [tensor.shape for tensor in tensors]
            behind = UpdateBehind(self.form(name).times(replicas), shapes)
            self._behind.setdefault(name, behind)
        return self._behind[name]

    def flush(self, update: Update) -> None:
        """Applies the updates that wait, of all names."""
        for name, behind in self._behind.items():
            behind.flush(lambda *step, name=name: update(name, *step))

    def clear(self) -> None:
        """Forgets all batches; eager only."""
        for queue in self._all_queues():
            queue.clear()
        for ahead in self._ahead.values():
            ahead.clear()

    @property
    def resources(self) -> list[Any]:
        """What exported functions hold the batches by."""
        holders: list[Any] = [
            *self._all_queues(),
            *self._ahead.values(),
            *self._behind.values(),
        ]
        return [resource for one in holders for resource in one.resources]

    def _all_queues(self) -> list[StepQueue]:
        return [
            queue
            for of_replicas in list(self._queues.values())
            for queue in of_replicas.values()
        ]

    def form(self, name: StepName) -> BatchForm:
        """That of the batches of a name.

        Raises:
          tfembed.errors.StateError: nothing was enqueued under it.
        """
        formats = self.formats(name)
        return BatchForm(
            tuple(one.kind for one in formats),
            tuple(one.batch_size for one in formats),
            tuple(one.id_dtype for one in formats),
        )


def _label(name: StepName) -> str:
    name = user_name(name)
    return "without a name" if name is None else f"under the name {name!r}"
