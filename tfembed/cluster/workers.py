"""Workers: the processes of a MultiWorkerMirroredStrategy, and their channels."""

from __future__ import annotations

import collections
import weakref
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.ops import parts

__all__ = ["SECONDS", "Workers", "workers"]

# For how long a worker waits for the others.
SECONDS = 300.0

# Group and instance of the only collective of TensorFlow that is run here.
# Those of strategies are counted from 1.
_GROUP = 0x7FE3BED

# How many channels of a name this process has made; all processes count alike.
_made: collections.Counter[str] = collections.Counter()
_known: weakref.WeakKeyDictionary[Any, Workers] = weakref.WeakKeyDictionary()


def workers() -> Workers | None:
    """Returns the workers of the strategy in scope.

    The result is None under other strategies than MultiWorkerMirroredStrategy,
    with a single worker, on an evaluator, and in graphs that sessions run.

    Raises:
      tfembed.errors.UnsupportedError: workers of several replicas each.
    """
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    found = _known.get(strategy)
    if found is None:
        tasks = _tasks(strategy.cluster_resolver)
        with tf.init_scope():
            is_eager = tf.executing_eagerly()
        if len(tasks) < 2 or not is_eager:
            return None
        found = _known[strategy] = Workers(strategy, tasks)
    return found


def _tasks(resolver: Any) -> list[tuple[str, int]]:
    """Lists the tasks that train, in the order in which TensorFlow counts."""
    jobs = ("chief", "worker")
    if resolver is None or resolver.task_type not in jobs:
        return []
    spec = resolver.cluster_spec()
    return [
        (job, task)
        for job in jobs
        if job in spec.jobs
        for task in spec.task_indices(job)
    ]


class Workers:
    """The workers of a strategy, each a process with one replica.

    Args:
      strategy: the strategy.
      tasks: the job and number of each worker.

    Attributes:
      index: the index of this worker.
      count: the number of workers.

    Raises:
      tfembed.errors.UnsupportedError: workers of several replicas each.
      tf.errors.OpError: a worker did not come.
    """

    def __init__(self, strategy: Any, tasks: list[tuple[str, int]]) -> None:
        resolver = strategy.cluster_resolver
        self.index = tasks.index((resolver.task_type, resolver.task_id))
        self.count = len(tasks)
        if strategy.num_replicas_in_sync != self.count:
            raise errors.UnsupportedError(
                "Tables are shared by workers of one replica each; this "
                f"MultiWorkerMirroredStrategy has {self.count} workers and "
                f"{strategy.num_replicas_in_sync} replicas. Start a process for "
                "each GPU, with one of them in its CUDA_VISIBLE_DEVICES."
            )
        self._devices = [
            f"/job:{job}/replica:0/task:{task}/device:CPU:0"
            for job, task in tasks
        ]
        with tf.init_scope(), tf.device(self._devices[self.index]):
            # TensorFlow's workers know of no other before a collective.
            tf.raw_ops.CollectiveReduceV2(
                input=tf.ones([1]),
                group_size=tf.constant(self.count),
                group_key=tf.constant(_GROUP),
                instance_key=tf.constant(1),
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
                communication_hint="ring",
                timeout_seconds=SECONDS,
            )
        self._agreement = self.channel("what all workers make")
        self.steps = self.channel("gradients of a step")

    def channel(self, name: str) -> tf.Tensor:
        """Makes the handle of a channel between the workers, for `exchange`.

        All workers must make their channels in the same order.

        Args:
          name: what the channel is called in errors.
        """
        _made[name] += 1
        number = _made[name]
        with tf.init_scope(), tf.device(self._devices[self.index]):
            return parts.channel(
                name if number == 1 else f"{name}#{number}",
                devices=self._devices,
                worker=self.index,
                seconds=SECONDS,
            )

    def agree(self, text: str) -> None:
        """Checks that all workers call this with the same text.

        Raises:
          tfembed.errors.StateError: some have another text.
        """
        with tf.init_scope():
            part = tf.io.decode_raw([text], tf.uint8)[0]
            received = parts.exchange(self._agreement, [part] * self.count)
            texts = [bytes(part.numpy()).decode() for part in received]
        for worker, other in enumerate(texts):
            if other != text:
                raise errors.StateError(
                    f"All workers must make the same tables in the same order; "
                    f"worker {self.index} makes {text}, worker {worker} {other}."
                )
