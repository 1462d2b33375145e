"""The training loop: many steps in one call of a tf.function, checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import keras
import tensorflow as tf

from criteo.click_model import ClickModel
from criteo.pipeline import Batch, Pipeline
from criteo.source import Position

_LAST_DECAY = 0.05


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    Attributes:
      batch_size: examples of a step.
      total_steps: where to stop; the learning rates fall to a twentieth until
        then. None: at the end of the data, and they stay as they are.
      learning_rate: of the dense part, by Adam.
      freeze_embeddings: leaves the tables' rows as they were at first.
      steps_per_call: of the training function.
    """

    batch_size: int
    total_steps: int | None = None
    learning_rate: float = 0.003
    freeze_embeddings: bool = False
    steps_per_call: int = 10


class Progress(NamedTuple):
    """What a call of the training function did.

    Attributes:
      steps: how many it took, at least one.
      loss: mean over its examples.
      labels, logits: float32 [steps, batch_size]; each logit was predicted
        before its example was trained on.
    """

    steps: int
    loss: float
    labels: tf.Tensor
    logits: tf.Tensor


class Trainer(tf.Module):
    """Trains a model; checkpoints hold the whole of it.

    Attributes:
      step: int64, steps done.
      position: int64 [4], where the source goes on.
    """

    def __init__(self, model: ClickModel, options: TrainingOptions) -> None:
        super().__init__()
        self.model = model
        self.options = options
        self.step = _variable(tf.int64, [], "step")
        self.position = _variable(tf.int64, [len(Position._fields)], "position")
        window = [options.steps_per_call, options.batch_size]
        self._labels = _variable(tf.float32, window, "labels")
        self._logits = _variable(tf.float32, window, "logits")
        self.optimizer = keras.optimizers.Adam(
            lambda: options.learning_rate * model.decay
        )
        self.optimizer.build(model.network.trainable_variables)

    def run(
        self, pipeline: Pipeline, stop: int | None = None
    ) -> Iterator[Progress]:
        """Trains on what the pipeline gives, from the position on.

        Between two items all variables are at rest, and can be saved.

        Args:
          pipeline: of the data; where it ends, the training does.
          stop: the step to end at; None: `total_steps`.

        Raises:
          DataError: as the pipeline's source does.
        """
        start = Position(*self.position.numpy().tolist())
        batches = iter(pipeline.dataset(start))
        while wanted := self._next_steps(stop):
            try:
                done = int(self._run(batches, tf.constant(wanted)))
            except tf.errors.OpError as error:
                raise pipeline.failure or error from None
            if done:
                yield self._progress(done)
            if done < wanted:
                return

    def _next_steps(self, stop: int | None) -> int:
        most = self.options.steps_per_call
        end = self.options.total_steps if stop is None else stop
        return most if end is None else min(most, max(0, end - int(self.step)))

    @tf.function
    def _run(self, batches: Iterator[Batch], count: tf.Tensor) -> tf.Tensor:
        """Takes up to `count` steps; fewer at the end of the data."""
        done = tf.constant(0)
        for place in tf.range(count):
            batch = batches.get_next_as_optional()
            if batch.has_value():
                self._step(place, batch.get_value())
                done += 1
        return done

    def _step(self, place: tf.Tensor, batch: Batch) -> None:
        model, options = self.model, self.options
        self._decay()
        is_training = not options.freeze_embeddings
        model.embedding.enqueue(
            tf.unstack(batch.keys, axis=1), training=is_training
        )
        rows = model.embedding.dequeue()
        weights = model.network.trainable_variables
        with tf.GradientTape() as tape:
            tape.watch(rows)
            logits = model.network(batch.dense, rows)
            # The sum, not the mean: so a row's gradient does not depend on the
            # batch size. Adam does not see the difference.
            loss = tf.reduce_sum(
                tf.nn.sigmoid_cross_entropy_with_logits(batch.labels, logits)
            )
        rows_gradient, gradient = tape.gradient(loss, (rows, weights))
        if is_training:
            model.embedding.apply_gradients(rows_gradient)
        self.optimizer.apply(gradient, weights)
        self._labels[place].assign(batch.labels)
        self._logits[place].assign(logits)
        self.position.assign(batch.positions[-1])
        self.step.assign_add(1)

    def _decay(self) -> None:
        if self.options.total_steps is not None:
            done = self.step / self.options.total_steps
            left = tf.cast(1 - tf.minimum(done, 1), tf.float32)
            self.model.decay.assign(_LAST_DECAY + (1 - _LAST_DECAY) * left)

    def _progress(self, steps: int) -> Progress:
        labels, logits = self._labels[:steps], self._logits[:steps]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        return Progress(steps, float(tf.reduce_mean(losses)), labels, logits)


def _variable(dtype: tf.DType, shape: list[int], name: str) -> tf.Variable:
    zeros = tf.zeros(shape, dtype)
    return tf.Variable(zeros, trainable=False, name=name)
