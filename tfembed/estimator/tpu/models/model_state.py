"""A model under a strategy: its variables, input, steps and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator import checkpoints, input_functions
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.keras_layers import seeded
from tfembed.estimator.spec import ModeKeys
from tfembed.estimator.tpu import padding
from tfembed.estimator.tpu.config import InputPipelineConfig, RunConfig
from tfembed.estimator.tpu.context import Invocation, ModeContext, TPUContext
from tfembed.estimator.tpu.input_pipeline import (
    ReplicaBatch,
    paths,
    split_batch,
)
from tfembed.estimator.tpu.models.model_tables import ModelTables
from tfembed.estimator.tpu.models.trained_model import model_of


class ModelState:
    """A model, made once under the strategy of its mode, with its functions.

    Args:
      make_model: Makes the model.
      context: The context of the mode.
      spec: The tables besides the model's own; None without.

    Attributes:
      model: The `TrainedModel`.
      global_step: The variable that counts training steps.
      last_loss: The variable with the loss of the last step.
      global_batch_size: The number of rows of a step; None if unknown.
    """

    def __init__(
        self,
        make_model: Callable[[], Any],
        context: ModeContext,
        spec: EmbeddingConfigSpec | None,
    ) -> None:
        self._context = context
        self.global_batch_size = context.plan.global_batch_size
        self._is_broadcast = (
            context.plan.pipeline == InputPipelineConfig.BROADCAST
        )
        self._strategy = _strategy_for(context)
        self.global_step = tf.Variable(
            0, dtype=tf.int64, trainable=False, name="global_step"
        )
        self.last_loss = tf.Variable(0.0, trainable=False)
        with seeded(context.config.tf_random_seed), self._strategy.scope():
            self.model = model_of(make_model())
            self._tables = (
                None if spec is None else ModelTables(spec, self.global_step)
            )
        self._input: tuple[Any, ...] = ()
        self._is_built = False
        self._has_trained = hasattr(self.model.optimizer, "build")
        # A step is a function of its own, so that it starts once it has its
        # batches: a step without data changes no variable.
        self._one_step = tf.function(self._train_once)
        self._first_step = tf.function(self._take_and_train)
        self._loop = tf.function(self._train_loop)
        self.evaluate = tf.function(self._evaluate_once)
        self.predict = tf.function(self._predict_once)

    @property
    def step(self) -> int:
        """The value of the global step."""
        return int(self.global_step.numpy())

    def build(self, inputs: ReplicaInput) -> None:
        """Sets the input of the steps; the first call makes all variables."""
        self._inputs = inputs
        if self._is_built:
            return
        batches = [inputs.example()] * self._context.plan.num_replicas
        with seeded(self._context.config.tf_random_seed):
            self._strategy.run(
                self._build_in_replica,
                (self._distributed(batches, training=False),),
            )
            self.model.reset_metrics()
            optimizer = self.model.optimizer
            if self._context.mode == ModeKeys.TRAIN and self._has_trained:
                with self._strategy.scope():
                    optimizer.build(self.model.trainable_variables)
        self._is_built = True

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the latest checkpoint; None without one."""
        return checkpoints.latest_checkpoint(self._context.config.model_dir)

    def manager(self, config: RunConfig) -> Any:
        """Returns the CheckpointManager."""
        objects = self._objects()
        if self._input:
            objects["input"] = list(self._input)
        return tf.train.CheckpointManager(
            tf.train.Checkpoint(**objects),
            config.model_dir,
            max_to_keep=config.keep_checkpoint_max or None,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            checkpoint_name="model.ckpt",
        )

    def save_input(
        self, iterators: Sequence[Any], checkpoint: str | None
    ) -> None:
        """Saves the input's position in checkpoints, and restores it from one.

        Args:
          iterators: The iterators of the input; empty: no position is saved.
          checkpoint: The path to restore from; None: starts at the beginning.
        """
        self._input = tuple(iterators)
        if self._input and checkpoint:
            saved = tf.train.Checkpoint(input=list(self._input))
            saved.restore(checkpoint).expect_partial()

    def restore(self, checkpoint: str, *, step_too: bool = True) -> None:
        """Restores the variables from a checkpoint.

        Args:
          checkpoint: The path of the checkpoint.
          step_too: Whether to restore the step and the optimizer too, so that
            training resumes; else only the model's variables and the tables.

        Raises:
          tfembed.errors.CheckpointError, tf.errors.OpError: As for
            `restore_objects`.
        """
        objects = self._objects()
        if not step_too:
            objects.pop("optimizer")
            objects.pop("global_step")
        elif self._context.mode != ModeKeys.TRAIN:
            objects.pop("optimizer")
        restore_objects(objects, checkpoint)

    def train(self, iterators: Sequence[Any], count: int) -> None:
        """Runs `count` training steps.

        Raises:
          tf.errors.OutOfRangeError: the data ended early; the steps until then
            are done, and counted in `global_step`.
        """
        if not self._has_trained:
            # An optimizer of this kind makes its slots in the first step.
            self._first_step(iterators)
            self._has_trained = True
            count -= 1
        if count:
            self._loop(iterators, tf.constant(count))

    def _objects(self) -> dict[str, Any]:
        """Returns the objects to save in a checkpoint, by name."""
        objects = {
            "model": self.model.model,
            "optimizer": self.model.optimizer,
            "global_step": self.global_step,
        }
        if self._tables is not None:
            objects["embedding"] = self._tables.embedding
        return objects

    def _train_loop(self, iterators: Sequence[Any], count: Any) -> None:
        def body(i: Any) -> tuple[Any]:
            self._one_step(self._fields(iterators))
            return (i + 1,)

        tf.while_loop(lambda i: i < count, body, (tf.constant(0),))

    def _take_and_train(self, iterators: Sequence[Any]) -> None:
        self._one_step(self._fields(iterators))

    def _fields(self, iterators: Sequence[Any]) -> list[dict[str, Any]]:
        """Takes a batch for each replica."""
        return [batch.fields() for batch in self._inputs.take(iterators)]

    def _train_once(self, batches: list[dict[str, Any]]) -> None:
        values = self._distributed(
            [ReplicaBatch(**{"labels": None, **each}) for each in batches],
            training=True,
        )
        losses = self._strategy.run(self._train_in_replica, (values,))
        loss = self._strategy.reduce(
            tf.distribute.ReduceOp.SUM, losses, axis=None
        )
        with tf.control_dependencies([loss]):
            self.global_step.assign_add(1)
            self.last_loss.assign(tf.cast(loss, tf.float32))

    def _evaluate_once(self, iterators: Sequence[Any]) -> tuple[Any, Any]:
        """Evaluates one batch of each replica.

        Returns:
          The sum of the losses of all rows, and the number of rows.
        """
        values = self._distributed(self._inputs.take(iterators), training=False)
        found = self._strategy.run(self._evaluate_in_replica, (values,))
        return tuple(
            self._strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)
            for each in found
        )

    def _predict_once(self, iterators: Sequence[Any]) -> tuple[Any, Any]:
        """Predicts one batch of each replica.

        Returns:
          The predictions and the padding mask of each replica.
        """
        values = self._distributed(self._inputs.take(iterators), training=False)
        found = self._strategy.run(self._predict_in_replica, (values,))
        count = 1 if self._is_broadcast else self._context.plan.num_replicas
        of_replicas = [
            tf.nest.map_structure(
                lambda value: self._strategy.experimental_local_results(value)[
                    i  # noqa: B023 - called here
                ],
                found,
            )
            for i in range(count)
        ]
        return (
            [predictions for predictions, _ in of_replicas],
            [mask for _, mask in of_replicas],
        )

    def _distributed(
        self, batches: Sequence[ReplicaBatch], *, training: bool
    ) -> Any:
        """Returns the replicas' values of a batch; enqueues the tables' ids."""
        fields = [batch.fields() for batch in batches]
        if self._tables is not None:
            fields = [self._tables.apart(each) for each in fields]
        values = self._strategy.experimental_distribute_values_from_function(
            lambda context: fields[context.replica_id_in_sync_group]
        )
        if self._tables is not None:
            self._tables.enqueue(values.pop("embedded"), training=training)
        return values

    def _features(self, values: dict[str, Any]) -> tuple[Any, Any]:
        """Returns a replica's features, and the activations among them."""
        features = values["features"]
        if self._tables is None:
            return features, {}
        rows = self._tables.dequeue()
        return {**features, **rows}, rows

    def _build_in_replica(self, values: dict[str, Any]) -> None:
        features, _ = self._features(values)
        labels = values.get("labels")
        predictions = self.model.predict(features, training=False)
        if self._context.mode == ModeKeys.PREDICT:
            return
        self.model.loss(features, labels, predictions, training=False)
        if self._context.mode == ModeKeys.EVAL:
            self.model.update_metrics(features, labels, predictions, None)

    def _train_in_replica(self, values: dict[str, Any]) -> Any:
        features, rows = self._features(values)
        loss, gradients, of_rows = self.model.gradients(
            features, values.get("labels"), rows
        )
        if self._tables is not None:
            self._tables.apply_gradients(of_rows)
        self.model.optimizer.apply_gradients(
            list(zip(gradients, self.model.trainable_variables, strict=True))
        )
        return loss

    def _evaluate_in_replica(self, values: dict[str, Any]) -> tuple[Any, Any]:
        features, _ = self._features(values)
        labels = values.get("labels")
        weights = tf.cast(1 - self._mask(values), tf.float32)
        if self._is_broadcast:
            replica = tf.distribute.get_replica_context()
            weights *= tf.cast(
                tf.equal(replica.replica_id_in_sync_group, 0), tf.float32
            )
        predictions = self.model.predict(features, training=False)
        loss = self.model.loss(features, labels, predictions, training=False)
        loss *= tf.cast(self._strategy.num_replicas_in_sync, loss.dtype)
        rows = tf.reduce_sum(weights)
        batch = features, labels, predictions
        if not self._context.system.is_strict:
            # Metrics of Keras' compile take no weights: remove the padding
            # rows.
            count = tf.cast(rows, tf.int32)
            batch = (
                *tf.nest.map_structure(
                    lambda tensor: padding.first_rows(tensor, count),
                    (features, labels),
                ),
                predictions_of_data(
                    predictions, tf.cast(1 - weights, tf.int32)
                ),
            )
            weights = weights[:count]
        self.model.update_metrics(*batch, weights)
        # A replica of only padding may have any loss, even NaN.
        sums = tf.where(rows > 0, rows * tf.cast(loss, tf.float32), 0.0)
        return sums, rows

    def _predict_in_replica(self, values: dict[str, Any]) -> tuple[Any, Any]:
        features, _ = self._features(values)
        predictions = self.model.predict(features, training=False)
        return predictions, self._mask(values)

    def _mask(self, values: dict[str, Any]) -> Any:
        """Returns [batch], 1 for a row of padding, else 0."""
        if "mask" in values:
            return values["mask"]
        return tf.zeros([padding.count_rows(values)], tf.int32)


def restore_objects(objects: dict[str, Any], checkpoint: str) -> None:
    """Restores objects by their names from a checkpoint.

    Raises:
      tfembed.errors.CheckpointError: (also ValueError) the checkpoint belongs
        to another model.
      tf.errors.NotFoundError: A file of the checkpoint is missing.
      tf.errors.DataLossError: A file of the checkpoint is cut or damaged.
    """
    checkpoints.check_files(checkpoint)
    try:
        status = tf.train.Checkpoint(**objects).restore(checkpoint)
        status.assert_existing_objects_matched().expect_partial()
    except tf.errors.DataLossError:
        raise
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        saved = [name for name, _ in tf.train.list_variables(checkpoint)]
        raise errors.CheckpointError(
            f"Checkpoint '{checkpoint}' is not of this model: {error}. It "
            f"has {saved[:10]}. Give another model_dir, or start from it "
            "by warm_start_from."
        ) from error


def _strategy_for(context: ModeContext) -> Any:
    """Returns a strategy with the replicas of a mode."""
    if tf.distribute.has_strategy():
        raise errors.StateError(
            "A TPUEstimator with a model makes a strategy of its own; call it "
            "outside of strategy.scope()."
        )
    if not context.system.is_simulated:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            context.master
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    if context.num_replicas == 1:
        return tf.distribute.get_strategy()
    _make_cpus(context.num_replicas)
    # Sums in the order of replicas, so that two runs give the same bits.
    # (Collective ops would clash with those of other strategies.)
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(context.num_replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def _make_cpus(count: int) -> None:
    """Ensures that there is a logical CPU for each replica."""
    physical = tf.config.list_physical_devices("CPU")[0]
    found = tf.config.get_logical_device_configuration(physical) or [None]
    if len(found) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(
            physical, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        raise errors.StateError(
            f"{count} replicas of a model need as many logical CPUs; there are "
            f"{len(found)}, and TensorFlow has begun to run. Before the first "
            "op, call tf.config.set_logical_device_configuration("
            "tf.config.list_physical_devices('CPU')[0], "
            f"[tf.config.LogicalDeviceConfiguration()] * {count})."
        ) from error


class ReplicaInput:
    """The datasets of a mode, from which a step takes its batches.

    An input_fn must return a Dataset; the mode's plan gives the number of
    calls and the batch size. The last batches of evaluations and predictions
    are padded, and `take` removes the padding if shapes need not be static.

    Args:
      input_fn: Takes a `TPUContext`, and returns the result of the user's
        input_fn.
      context: The context of the mode.
      batch_axis: As for `TPUEstimator`.
      is_static: Whether batches keep their padding, so that all have the same
        size.

    Attributes:
      iterators: The iterator of each call of input_fn.
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
        """Returns a replica's batch of zeros, structured like real ones."""
        size = (self._plan.model_fn_batch_size or 1) * self._parts_of_batch
        batch = _batch(padding.zeros(self._datasets[0].element_spec, size))
        return self._split(batch, self._parts_of_batch)[0]

    def take(self, iterators: Sequence[Any]) -> list[ReplicaBatch]:
        """Takes a batch for each replica, in a traced function."""
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
        """The number of parts into which input_fn's batches are split."""
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


def predictions_of_data(predictions: Any, mask: Any) -> Any:
    """Removes the rows of padding from a replica's predictions.

    Args:
      predictions: Nested tensors.
      mask: [batch], 1 for a row of padding, else 0.

    Raises:
      tf.errors.InvalidArgumentError: a row of a prediction stands for rows of
        data and of padding, as the step finds out.
    """
    return tf.nest.pack_sequence_as(
        predictions,
        [
            padding.rows_of_data([tensor], [mask], f"The prediction {path}")
            for path, tensor in zip(
                paths(predictions), tf.nest.flatten(predictions)
            )
        ],
    )


def _without_padding(batch: ReplicaBatch) -> ReplicaBatch:
    """Cuts a batch to its rows of data; keeps one row if it has none."""
    if batch.mask is None:
        return batch
    rows = tf.maximum(tf.reduce_sum(1 - batch.mask), 1)

    features, labels, mask = tf.nest.map_structure(
        lambda tensor: padding.first_rows(tensor, rows),
        (batch.features, batch.labels, batch.mask),
    )
    return ReplicaBatch(features, labels, mask)
