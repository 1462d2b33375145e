"""`tfembed.keras.Model`: a keras.Model that trains on a cluster, too."""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
import zlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfembed import errors
from tfembed.checkpoint.table_saver import check_not_shared
from tfembed.keras.private import ClusterHooks
from tfembed.monitoring.found_tables import find_tables
from tfembed.tables import HashTable

__all__ = ["Model"]

# Seconds for which workers wait until all have called `save`, and until the
# chief has written.
MEETING_SECS = 60.0
_WRITING_SECS = 3600.0


@keras.saving.register_keras_serializable("tfembed.keras")
class Model(keras.Model):
    """A keras.Model whose `fit` runs under MultiWorkerMirroredStrategy, too.

    A model that is made in the scope of such a strategy trains there by `fit`,
    with `evaluate`, `predict`, `save` and the callbacks of Keras. It is
    functional, `Model(inputs, outputs)`, or a subclass. Elsewhere it is a
    keras.Model, unchanged.

    All workers run the same program. `fit`, `evaluate` and `predict` split
    each batch among the workers, and give the results of one process with the
    whole batches, the last smaller one too. The rows of
    `tfembed.keras.layers.Embedding` lie on all workers, by key.

    All workers call `save`, `save_weights` and `export`, and so callbacks that
    do: the chief writes its path, and a call of one worker alone is an error
    after a minute. TensorBoard, CSVLogger and BackupAndRestore write on the
    chief alone.

    Raises:
      tfembed.errors.StateError: not all workers called `save`.
      tfembed.errors.UnsupportedError: `train_on_batch` of several workers, or
        a save of a model whose tables the workers share.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Model:
        """Makes a model of the class that its arguments and strategy ask for."""
        special = _special_of(cls, args, kwargs)
        return super().__new__(special if issubclass(special, cls) else cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A subclass may be functional by its own constructor.
        special = _special_of(type(self), args, kwargs)
        if special is not type(self):
            object.__setattr__(self, "__class__", special)
        super().__init__(*args, **kwargs)


def _special_of(cls: type, args: Any, kwargs: Any) -> type:
    """Returns `cls`, or a class made of it for models with these arguments."""
    functional: Any = None
    if _is_functional(args, kwargs):
        # Of the class that keras.Model makes of these, but not made.
        functional = type(keras.Model.__new__(keras.Model, *args, **kwargs))
    fitting = _fitting()
    made_of: Any = getattr(cls, "made_of", cls)
    if not (functional or fitting):
        return made_of
    return _special(made_of, fitting, functional)


def _is_functional(args: Any, kwargs: Any) -> bool:
    return len(args) == 2 or (
        "outputs" in kwargs and (len(args) == 1 or "inputs" in kwargs)
    )


def _fitting() -> Any:
    """Returns the class of models under the strategy in scope, if any."""
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return MirroredModel
    return None


@functools.cache
def _special(cls: Any, fitting: Any, functional: Any) -> type:
    """Makes the class of a model of `cls` that is functional, or on a cluster.

    What `cls` overrides comes first. Keras saves and loads the model as one of
    `cls`.
    """
    bases = tuple(base for base in (fitting, functional) if base)
    if cls is not Model or not fitting:
        bases = (cls, *bases)
    content = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "made_of": cls,
    }
    made = type(cls.__name__, bases, content)
    package, _, name = keras.saving.get_registered_name(cls).rpartition(">")
    if package:
        # The first for saves, the second for loads.
        keras.saving.register_keras_serializable(package, name)(made)
        keras.saving.register_keras_serializable(package, name)(cls)
    return made


class MirroredModel(ClusterHooks, Model):
    """A model under a MultiWorkerMirroredStrategy."""

    made_of: type

    @property
    def cluster_strategy(self) -> Any:
        """The strategy under which the model was made."""
        return self.distribute_strategy

    def first_batch(self, data: Any) -> Any:
        """Returns the first batch of this worker."""
        local = self.distribute_strategy.experimental_local_results
        return tf.nest.map_structure(lambda x: local(x)[0], next(iter(data)))

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: Any = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Trains as keras.Model.fit; all workers call it."""
        if isinstance(callbacks, (list, tuple)) and not self._is_chief():
            callbacks = [
                one
                for given in callbacks
                if (one := _of_other_worker(given)) is not None
            ]
        return super().fit(
            x, y, batch_size, epochs, verbose, callbacks, *args, **kwargs
        )

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: Any = True,
    ) -> Any:
        """Returns the loss of this worker's part of the batch.

        Keras weighs the means of all workers alike. Gradients of a part of
        another size are scaled, so that their sum is that of the whole batch.
        """
        if training and tf.distribute.in_cross_replica_context() is False:
            y_pred = self._by_size(y_pred)
        return super().compute_loss(
            x=x,
            y=y,
            y_pred=y_pred,
            sample_weight=sample_weight,
            training=training,
        )

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that takes steps of training."""
        if self.train_function is None or force:
            self.train_function = self._steps(self.train_step)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """Makes the function that takes steps of evaluation."""
        if self.test_function is None or force:
            self.test_function = self._steps(self.test_step)
        return self.test_function

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Saves the model as keras.Model.save; all workers call it."""
        self._write("save", super().save, filepath, *args, **kwargs)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Saves as keras.Model.save_weights; all workers call it."""
        self._write(
            "save_weights", super().save_weights, filepath, *args, **kwargs
        )

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Exports as keras.Model.export; all workers call it."""
        self._write("export", super().export, filepath, *args, **kwargs)

    def _steps(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a function of an iterator that takes `steps_per_execution`.

        Its logs are the means of all workers, of the last step, by one call.
        """
        strategy, num_steps = self.distribute_strategy, self.steps_per_execution
        form: Any = None

        def packed(data: Any) -> tf.Tensor:
            nonlocal form
            logs = tf.nest.map_structure(tf.convert_to_tensor, step(data))
            form = tf.nest.map_structure(
                lambda value: tf.TensorSpec(value.shape, value.dtype), logs
            )
            return tf.concat(
                [
                    tf.reshape(tf.cast(value, tf.float64), [-1])
                    for value in tf.nest.flatten(logs)
                ],
                0,
            )

        @tf.autograph.experimental.do_not_convert
        def take(iterator: Any) -> Any:
            batch = iterator.get_next_as_optional()

            def step_of_batch() -> tf.Tensor:
                logs = strategy.run(packed, args=(batch.get_value(),))
                local = strategy.experimental_local_results(logs)
                return tf.reduce_mean(tf.stack(local), 0)

            def no_step() -> tf.Tensor:
                sizes = [v.shape.num_elements() for v in tf.nest.flatten(form)]
                return tf.zeros([sum(sizes)], tf.float64)

            # What does not depend on the batch must not run without one.
            there = batch.has_value()
            return there, tf.cond(there, step_of_batch, no_step)

        @tf.autograph.experimental.do_not_convert
        def mean(logs: Any) -> Any:
            flat = tf.nest.flatten(form)
            means = strategy.run(_mean_of_workers, args=(logs,))
            parts = tf.split(
                strategy.experimental_local_results(means)[0],
                [value.shape.num_elements() for value in flat],
            )
            return tf.nest.pack_sequence_as(
                form,
                [
                    tf.cast(tf.reshape(part, value.shape), value.dtype)
                    for part, value in zip(parts, flat, strict=True)
                ],
            )

        if not self.run_eagerly:
            take = tf.function(take, reduce_retracing=True)
            mean = tf.function(mean, reduce_retracing=True)

        def steps(iterator: Any) -> Any:
            if not isinstance(iterator, tf.distribute.DistributedIterator):
                raise errors.UnsupportedError(
                    "train_on_batch and test_on_batch take batches of one "
                    "process; call `fit` or `evaluate` in a cluster."
                )
            # Not in a function: TensorFlow gathers the slices of an embedding's
            # gradient there only if they have one size in all steps.
            there, logs = take(iterator)
            if not there:
                raise StopIteration
            for _ in range(num_steps - 1):
                there, more = take(iterator)
                if not there:
                    break
                logs = more
            return mean(logs)

        return steps

    def _by_size(self, y_pred: Any) -> Any:
        """Scales the gradient of outputs by this part's size over the mean."""
        outputs = tf.nest.flatten(y_pred)
        losses = tf.nest.flatten(self.loss)
        if len(losses) != len(outputs):
            losses = losses[:1] * len(outputs)
        context = tf.distribute.get_replica_context()
        size = tf.cast(tf.shape(outputs[0])[:1], tf.float32)
        whole = context.all_reduce("SUM", size)
        share = tf.math.divide_no_nan(
            size * float(context.num_replicas_in_sync), whole
        )[0]
        return tf.nest.pack_sequence_as(
            y_pred,
            [
                output
                if getattr(loss, "reduction", "") == "sum"
                else _scaled(output, share)
                for output, loss in zip(outputs, losses, strict=True)
            ],
        )

    def _is_chief(self) -> bool:
        resolver = self.distribute_strategy.cluster_resolver
        if resolver is None or not resolver.task_type:
            return True  # One process.
        if resolver.task_type == "chief":
            return True
        jobs = resolver.cluster_spec().as_dict()
        return "chief" not in jobs and resolver.task_id == 0

    def _write(
        self,
        method: str,
        write: Callable[..., None],
        path: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Has all workers write, of which the chief's file stays."""
        for table in find_tables(self):
            if isinstance(table.rows, HashTable):
                check_not_shared(table.rows)
        self._meet(method, MEETING_SECS)
        failed: Exception | None = None
        try:
            if self._is_chief():
                write(path, *args, **kwargs)
            else:
                with tempfile.TemporaryDirectory() as folder:
                    name = pathlib.PurePath(os.fspath(path)).name
                    write(str(pathlib.Path(folder, name)), *args, **kwargs)
        except Exception as error:
            failed = error
        written = self._meet(f"{method} ended", _WRITING_SECS, not failed)
        if failed is not None:
            raise failed
        if not written:
            raise errors.StateError(
                f"`{method}` failed on another worker, whose error says why; "
                f"'{path}' is not whole."
            )

    def _meet(self, call: str, seconds: float, is_fine: bool = True) -> bool:
        """Waits for all workers; returns whether all are fine."""
        strategy = self.distribute_strategy
        workers = strategy.num_replicas_in_sync
        # Of a shape that no other sum of a model has.
        told = [1, zlib.crc32(call.encode()), int(is_fine), 0, 0, 0, 0]
        try:
            sums = _sum_within(strategy, seconds)(tf.constant(told, tf.int64))
        except tf.errors.OpError as error:
            raise self._missed(call, seconds) from error
        heard = strategy.experimental_local_results(sums)[0]
        if int(heard[1]) != told[1] * workers:
            raise self._missed(call, seconds)
        return int(heard[2]) == workers

    def _missed(self, call: str, seconds: float) -> errors.StateError:
        resolver = self.distribute_strategy.cluster_resolver
        return errors.StateError(
            f"`{call}` of model '{self.name}' was called by "
            f"{resolver.task_type} {resolver.task_id}, and not by all of the "
            f"{self.distribute_strategy.num_replicas_in_sync} workers within "
            f"{seconds:g} seconds. All workers must call it, for instance by a "
            "callback that is given to `fit` on each of them: the chief's path "
            "is written, the other workers' are not."
        )


def _mean_of_workers(value: tf.Tensor) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    # An argument of a function lies nowhere; a sum asks for its device.
    return context.all_reduce("MEAN", tf.identity(value))


@functools.cache
def _sum_within(strategy: Any, seconds: float) -> Any:
    """Makes a function that adds up a vector of each worker, in some seconds."""
    options = tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=seconds
    )

    def add(told: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", tf.identity(told), options)

    return tf.function(
        lambda told: strategy.run(add, args=(told,)), autograph=False
    )


def _scaled(value: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Returns `value`, of which the gradient is multiplied by `scale`."""

    @tf.custom_gradient
    def same(value: tf.Tensor) -> Any:
        return tf.identity(
            value
        ), lambda upstream: upstream * tf.cast(scale, upstream.dtype)

    return same(value)


class _Backup(keras.callbacks.BackupAndRestore):
    """Restores as another one, and backs up into a folder that goes.

    Args:
      of: the callback of the program.
    """

    def __init__(self, of: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        super().__init__(
            str(pathlib.Path(self._folder.name, "backup")),
            save_freq=of.save_freq,
            double_checkpoint=of.double_checkpoint,
        )
        self._of = of

    def on_train_begin(self, logs: Any = None) -> None:
        """Reads the backup that the chief wrote."""
        self._of.set_model(self.model)
        self._of.on_train_begin(logs)


def _of_other_worker(callback: Any) -> Any:
    """Returns what stands for a callback on a worker that is not the chief."""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        return _Backup(callback)
    writes = (keras.callbacks.TensorBoard, keras.callbacks.CSVLogger)
    return None if isinstance(callback, writes) else callback
