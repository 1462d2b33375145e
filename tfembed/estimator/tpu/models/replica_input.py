"""Batches of an input_fn, dealt to the replicas of a strategy, eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator import input_functions
from tfembed.estimator.spec import ModeKeys
from tfembed.estimator.tpu import padding
from tfembed.estimator.tpu.config import InputPipelineConfig
from tfembed.estimator.tpu.context import Invocation, ModeContext, TPUContext
from tfembed.estimator.tpu.input_pipeline import ReplicaBatch, split_batch


class ReplicaInput:
    """The datasets of a mode, and how a step takes its batches from them.

    An input_fn is called as often, and with the batch size, that the plan of
    the mode says; it must return a Dataset. Last batches of evaluations and
    predictions are filled up, and cut to their rows again in `take` where
    shapes need not be static.

    Args:
      input_fn: Takes a `TPUContext`, and returns what the user's returns.
      context: That of the mode.
      batch_axis: As `TPUEstimator`'s.
      is_static: Whether batches keep their padding, so that all have one size.

    Attributes:
      iterators: An iterator for each call of input_fn.
    """

    def __init__(
        self,
        input_fn: Callable[[TPUContext], Any],
        context: ModeContext,
        batch_axis: Sequence[int] | None = None,
        *,
        is_static: bool = False,
    ) -> None:
        self._is_static = is_static
        self._context = context
        self._plan = context.plan
        self._batch_axis = batch_axis
        with tf.device("/CPU:0"):
            self._datasets = [
                self._dataset(input_fn(self._user_context(index)))
                for index in range(self._plan.num_invocations)
            ]
            self.iterators = tuple(iter(each) for each in self._datasets)

    def example(self) -> ReplicaBatch:
        """Returns a batch of zeros, formed as those of a replica."""
        size = (self._plan.model_fn_batch_size or 1) * self._parts_of_batch
        batch = _batch(padding.zeros(self._datasets[0].element_spec, size))
        return self._split(batch, self._parts_of_batch)[0]

    def take(self, iterators: Sequence[Any]) -> list[ReplicaBatch]:
        """Takes a batch for each replica, in a function that is traced."""
        batches: list[ReplicaBatch] = []
        for iterator in iterators:
            if self._plan.pipeline == InputPipelineConfig.PER_HOST_V2:
                batches += [
                    _batch(next(iterator))
                    for _ in range(self._plan.replicas_per_invocation)
                ]
                continue
            batch = _batch(next(iterator))
            count = self._plan.replicas_per_invocation
            if self._plan.pipeline == InputPipelineConfig.BROADCAST:
                batches += [batch] * count
            else:
                batches += self._split(batch, count)
        if self._is_static:
            return batches
        return [_without_padding(batch) for batch in batches]

    @property
    def _parts_of_batch(self) -> int:
        """Into how many parts a batch of input_fn is split."""
        if self._plan.pipeline in (
            None,
            InputPipelineConfig.PER_HOST_V2,
            InputPipelineConfig.BROADCAST,
        ):
            return 1
        return self._plan.replicas_per_invocation

    def _split(self, batch: ReplicaBatch, count: int) -> list[ReplicaBatch]:
        return split_batch(batch, count, self._batch_axis)

    def _user_context(self, index: int) -> TPUContext:
        plan = self._plan
        host = index
        if plan.pipeline == InputPipelineConfig.PER_SHARD_V1:
            host = index // plan.num_of_replicas_per_host
        device = self._context.host_device(host)
        return TPUContext(self._context, Invocation(device, host, index))

    def _dataset(self, result: Any) -> Any:
        if not isinstance(result, tf.data.Dataset):
            raise errors.DtypeError(
                "An input_fn for a model object must return a tf.data.Dataset "
                f"of features, or of (features, labels); got {result!r}."
            )
        mode, size = self._plan.mode, self._plan.input_fn_batch_size
        if mode == ModeKeys.TRAIN or (
            self._plan.pipeline is None and not self._is_static
        ):
            return result.map(_as_fields)
        num_batches = 1
        if self._plan.pipeline == InputPipelineConfig.PER_HOST_V2:
            num_batches = self._plan.replicas_per_invocation
        if size is None:
            raise errors.ArgumentError(
                "Tables of an EmbeddingConfigSpec need batches of one size: "
                "give eval_batch_size and predict_batch_size."
            )
        return padding.pad_dataset(
            result,
            size,
            num_batches,
            is_endless=self._plan.num_invocations > 1,
        )


def _as_fields(*element: Any) -> dict[str, Any]:
    features, labels = input_functions.parse_iterator_result(
        element[0] if len(element) == 1 else element
    )
    fields = {"features": features}
    if labels is not None:
        fields["labels"] = labels
    return fields


def _batch(fields: dict[str, Any]) -> ReplicaBatch:
    return ReplicaBatch(**{"labels": None, **fields})


def _without_padding(batch: ReplicaBatch) -> ReplicaBatch:
    """Cuts a batch to its rows of data, or to one row if it has none."""
    if batch.mask is None:
        return batch
    rows = tf.maximum(tf.reduce_sum(1 - batch.mask), 1)

    features, labels, mask = tf.nest.map_structure(
        lambda tensor: padding.first_rows(tensor, rows),
        (batch.features, batch.labels, batch.mask),
    )
    return ReplicaBatch(features, labels, mask)
