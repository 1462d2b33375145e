"""Calls input_fn for hosts and replicas, and splits batches over replicas.

`check_partitions` checks how tensors are split over the cores of a replica.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.estimator.models import input_functions
from tfembed.estimator.spec import ModeKeys
from tfembed.estimator.tpu import padding
from tfembed.estimator.tpu.config import InputPipelineConfig
from tfembed.estimator.tpu.context import Invocation, ModeContext, TPUContext

# If True, an input_fn with queue runners (tf.compat.v1.train.batch and others)
# raises an error, as on a TPU whose host loops over the input; else it warns.
WRAP_INPUT_FN_INTO_WHILE_LOOP = False

_QUEUES = (
    "Input pipeline contains one or more QueueRunners. It could be slow and "
    "not scalable. Please consider to return a tf.data.Dataset instead."
)


@dataclasses.dataclass(frozen=True)
class ReplicaBatch:
    """The input of one replica in a step.

    Attributes:
      features, labels: Nested tensors from input_fn.
      mask: [batch], 1 for a row of padding, else 0; None without padding.
      stopping: The stop signal of a batch for prediction; None in other modes.
    """

    features: Any
    labels: Any = None
    mask: Any = None
    stopping: Any = None

    def fields(self) -> dict[str, Any]:
        """Returns a dict of features, and of labels and mask if not None."""
        fields = {"features": self.features}
        if self.labels is not None:
            fields["labels"] = self.labels
        if self.mask is not None:
            fields["mask"] = self.mask
        return fields


@dataclasses.dataclass(frozen=True)
class Batches:
    """The input of a step: a batch per replica, and hooks to start datasets.

    Attributes:
      by_replica: A `ReplicaBatch` for each replica.
      hooks: Hooks that the session must run.
    """

    by_replica: list[ReplicaBatch]
    hooks: list[Any]


class InputPipeline:
    """Calls an input_fn as often as the configuration requires.

    Args:
      input_fn: Takes a `TPUContext`, and returns the result of the user's
        input_fn.
      context: The context of the mode.
      batch_axis: For each tensor, the dimension along which a host's batch is
        split over replicas; None: the first dimension of all.
    """

    def __init__(
        self,
        input_fn: Callable[[TPUContext], Any],
        context: ModeContext,
        batch_axis: Sequence[int] | None = None,
    ) -> None:
        self._input_fn = input_fn
        self._context = context
        self._plan = context.plan
        self._batch_axis = batch_axis
        self._hooks: list[Any] = []

    def batches(self) -> Batches:
        """Adds the input to the graph.

        Raises:
          tfembed.errors.DtypeError: (also TypeError) the mode needs a Dataset,
            or cannot take one.
          tfembed.errors.ArgumentError: (also ValueError) a tensor cannot be
            split.
        """
        if (
            self._plan.mode == ModeKeys.PREDICT
            and self._batch_axis is not None
            and self._plan.pipeline == InputPipelineConfig.PER_HOST_V1
        ):
            raise errors.DtypeError(
                "For mode PREDICT, batch_axis is not supported yet. Transpose "
                "the features in model_fn."
            )
        replicas: list[ReplicaBatch] = []
        for index in range(self._plan.num_invocations):
            replicas += self._batches_of_call(index)
        if self._plan.num_invocations > 1 and self._plan.mode == ModeKeys.EVAL:
            replicas = self._until_all_end(replicas)
        self._refuse_queues()
        cores = self._context.config.tpu_config.num_cores_per_replica
        dims = self._context.config.tpu_config.input_partition_dims
        if dims is not None:
            for batch in replicas:
                check_partitions(dims, batch.features, batch.labels, cores)
        return Batches(replicas, self._hooks)

    def _batches_of_call(self, index: int) -> list[ReplicaBatch]:
        host, scope = self._place(index)
        device = self._context.host_device(host)
        with tf.device(device), tf.name_scope(scope):
            result = self._input_fn(
                TPUContext(self._context, Invocation(device, host, index))
            )
            pipeline = self._plan.pipeline
            if pipeline == InputPipelineConfig.PER_SHARD_V1:
                return [self._tensors(result)]
            if pipeline == InputPipelineConfig.PER_HOST_V2:
                return self._taken_in_turn(result)
            batch = self._source(result, num_batches=1)()
            count = self._plan.replicas_per_invocation
            if pipeline == InputPipelineConfig.BROADCAST:
                return [batch] * count
            return split_batch(batch, count, self._batch_axis)

    def _place(self, index: int) -> tuple[int, str]:
        """Returns the host of a call, and the name scope of its ops."""
        plan = self._plan
        if plan.is_replica_across_hosts:
            host = self._context.host_of_replica(index)
        elif plan.pipeline == InputPipelineConfig.PER_SHARD_V1:
            host, core = divmod(index, plan.num_of_replicas_per_host)
            return host, f"input_pipeline_task{host}/ordinal_{core}/"
        else:
            host = index
        return host, f"input_pipeline_task{host}/"

    def _tensors(self, result: Any) -> ReplicaBatch:
        if isinstance(result, tf.data.Dataset):
            raise errors.DtypeError(
                "`input_fn` returning `Dataset` is not supported in the "
                "per-core input pipeline. Set "
                "TPUConfig.per_host_input_for_training to True or PER_HOST_V2, "
                "or return the `features` and `labels` of its iterator."
            )
        return _given(result)

    def _taken_in_turn(self, result: Any) -> list[ReplicaBatch]:
        """Takes a batch of a dataset for each replica of a host, one by one."""
        if not isinstance(result, tf.data.Dataset):
            raise errors.DtypeError(
                "`input_fn` must return a `Dataset` for the PER_HOST_V2 input "
                f"pipeline configuration; got {type(result).__name__}."
            )
        count = self._plan.replicas_per_invocation
        take = self._source(result, num_batches=count)
        in_any_order = self._context.config.tpu_config.experimental_allow_per_host_v2_parallel_get_next
        batches: list[ReplicaBatch] = []
        for _ in range(count):
            before = [] if in_any_order else _tensors_of(batches[-1:])
            with tf.control_dependencies(before):
                batch = take()
            if batches and batch.stopping is not None:
                # All replicas stop together: the first one's batch decides.
                batch = dataclasses.replace(batch, stopping=batches[0].stopping)
            batches.append(batch)
        return batches

    def _source(
        self, result: Any, *, num_batches: int
    ) -> Callable[[], ReplicaBatch]:
        """Returns a function that takes the next batch of input_fn's result."""
        mode, size = self._plan.mode, self._plan.input_fn_batch_size
        if not isinstance(result, tf.data.Dataset):
            if mode == ModeKeys.PREDICT:
                raise errors.DtypeError(
                    "For mode PREDICT, `input_fn` must return `Dataset` "
                    f"instead of `features` and `labels`; got {result!r}."
                )
            batch = _given(result)
            return lambda: batch
        assert size is not None  # `BatchPlan.check` has refused None.
        if mode == ModeKeys.PREDICT:
            iterator = tf.compat.v1.data.make_initializable_iterator(
                padding.stopping_dataset(result, size, num_batches)
            )
            self._start(iterator)
            strict = self._context.system.is_strict
            return lambda: _without_labels(iterator.get_next(), strict)
        if mode == ModeKeys.EVAL and self._batch_axis is None:
            iterator = tf.compat.v1.data.make_initializable_iterator(
                padding.pad_dataset(
                    result,
                    size,
                    num_batches,
                    is_endless=self._plan.num_invocations > 1,
                )
            )
            self._start(iterator)
            return lambda: ReplicaBatch(
                **{"labels": None, **iterator.get_next()}
            )
        iterator = tf.compat.v1.data.make_initializable_iterator(result)
        self._start(iterator)
        return lambda: ReplicaBatch(
            *input_functions.parse_iterator_result(iterator.get_next())
        )

    def _start(self, iterator: Any) -> None:
        self._hooks.append(input_functions.DatasetInitializerHook(iterator))

    def _until_all_end(self, batches: list[ReplicaBatch]) -> list[ReplicaBatch]:
        """Stops the input once all hosts' batches are only padding."""
        masks = [batch.mask for batch in batches if batch.mask is not None]
        if len(masks) < len(batches):
            return batches
        nothing = tf.compat.v1.data.make_initializable_iterator(
            tf.data.Dataset.from_tensors(True).take(0)
        )
        self._start(nothing)
        has_ended = tf.reduce_all(tf.equal(tf.concat(masks, 0), 1))
        check = tf.cond(has_ended, nothing.get_next, lambda: tf.constant(False))
        with tf.control_dependencies([check]):
            return [
                ReplicaBatch(
                    **tf.nest.map_structure(
                        _beside,
                        vars(batch),
                        expand_composites=True,
                    )
                )
                for batch in batches
            ]

    def _refuse_queues(self) -> None:
        runners = tf.compat.v1.GraphKeys.QUEUE_RUNNERS
        if not tf.compat.v1.get_collection(runners):
            return
        if WRAP_INPUT_FN_INTO_WHILE_LOOP:
            raise errors.StateError(_QUEUES)
        tf.compat.v1.logging.warn(_QUEUES)


def _given(result: Any) -> ReplicaBatch:
    """Returns the batch of an input_fn without a Dataset, as tensors."""
    features, labels = input_functions.parse_iterator_result(result)
    for name, value in named({"features": features, "labels": labels}):
        if not hasattr(value, "dtype"):
            raise errors.ArgumentError(
                f"input_fn returned {value!r}, of type {type(value).__name__}, "
                f"as '{name}'. Return tensors or arrays, whose first dimension "
                "is the batch."
            )
    return ReplicaBatch(
        *tf.nest.map_structure(
            lambda value: (
                tf.convert_to_tensor(value)
                if isinstance(value, np.ndarray)
                else value
            ),
            (features, labels),
        )
    )


def named(structure: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, tensor) for each tensor of a structure."""
    if structure is None:
        return
    if isinstance(structure, Mapping):
        for key in structure:
            path = f"{name}/{key}" if name else str(key)
            yield from named(structure[key], path)
    elif isinstance(structure, (tuple, list)):
        for i, value in enumerate(structure):
            yield from named(value, f"{name}/{i}" if name else str(i))
    else:
        yield name, structure


def paths(structure: Any) -> list[str]:
    """Returns the path of each leaf, in the order of `tf.nest.flatten`."""
    by_leaf = {id(leaf): path for path, leaf in named(structure)}
    return [by_leaf.get(id(leaf), "") for leaf in tf.nest.flatten(structure)]


def check_static(what: str, name: str, tensor: Any) -> None:
    """Raises an error if a TPU's compiler cannot take the shape of an input.

    Args:
      what: "features" or "labels".
      name: The tensor's path in the structure; "" is the whole.
      tensor: A tensor of any type; sparse and ragged ones are refused.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) the shape is not static.
    """
    if isinstance(tensor, tf.Tensor) and tensor.shape.is_fully_defined():
        return
    of = f" '{name}'" if name else ""
    raise errors.ArgumentError(
        f"The {what}{of} to the model returned by input_fn must have static "
        "shape. Batch a dataset with drop_remainder=True, and pad what differs "
        f"in length. Tensor: {tensor}."
    )


def _without_labels(batch: dict[str, Any], strict: bool) -> ReplicaBatch:
    """Returns a batch to predict from, which needs no labels."""
    labels = batch.pop("labels", None)
    # In all modes a TPU's input_fn must have static shapes.
    for name, tensor in named(labels) if strict else ():
        check_static("labels", name, tensor)
    return ReplicaBatch(**batch)


def _beside(tensor: Any) -> Any:
    """Copies a tensor on its own device."""
    if tensor is None:
        return None
    with tf.device(tensor.device or None):
        return tf.identity(tensor)


def _tensors_of(batches: list[ReplicaBatch]) -> list[Any]:
    return [
        tensor
        for batch in batches
        for tensor in tf.nest.flatten(
            (batch.features, batch.labels), expand_composites=True
        )
        if tensor is not None
    ]


def split_batch(
    batch: ReplicaBatch, count: int, batch_axis: Sequence[int] | None
) -> list[ReplicaBatch]:
    """Splits a host's batch over its replicas.

    Args:
      batch: The batch.
      count: The number of replicas.
      batch_axis: For each tensor, the dimension to split; None: the first.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) the parts would differ in
        size, or `batch_axis` does not fit the tensors.
    """
    if count == 1:
        return [batch]
    fields = {"features": batch.features, "labels": batch.labels}
    tensors = tf.nest.flatten(fields)
    axes = batch_axis or [0] * len(tensors)
    if len(axes) != len(tensors):
        raise errors.ArgumentError(
            f"batch_axis must have one number for each of the "
            f"{len(tensors)} tensors of features and labels; got "
            f"{list(axes)}."
        )
    parts = [
        _split_tensor(tensor, axis, count)
        for tensor, axis in zip(tensors, axes)
    ]
    masks = (
        [None] * count if batch.mask is None else tf.split(batch.mask, count)
    )
    return [
        ReplicaBatch(
            **tf.nest.pack_sequence_as(fields, [tensor[i] for tensor in parts]),
            mask=masks[i],
            stopping=batch.stopping,
        )
        for i in range(count)
    ]


def _split_tensor(tensor: Any, axis: int, count: int) -> list[Any]:
    if tensor is None:
        return [None] * count
    if isinstance(tensor, tf.SparseTensor):
        tensor = _divisible(tensor, tensor.dense_shape[axis], axis, count)
        return list(tf.sparse.split(tensor, count, axis=axis))
    if isinstance(tensor, tf.RaggedTensor):
        if axis:
            raise errors.ArgumentError(
                f"A ragged batch is dealt to replicas by its rows alone; "
                f"batch_axis gives dimension {axis} for {tensor}. Give 0."
            )
        tensor = _divisible(tensor, tensor.nrows(), axis, count)
        size = tensor.nrows() // count
        return [tensor[i * size : (i + 1) * size] for i in range(count)]
    if tensor.shape.rank == 0:
        raise _uneven(tensor, axis, count)
    tensor = _divisible(tensor, tf.shape(tensor)[axis], axis, count)
    return list(tf.split(tensor, count, axis=axis))


def _divisible(tensor: Any, rows: Any, axis: int, count: int) -> Any:
    """Returns the tensor, after a check that `count` divides its rows.

    If the number of rows is only known at run time, the step checks it.
    """
    known = tensor.shape[axis] if tensor.shape.rank else None
    if known is not None:
        if known % count:
            raise _uneven(tensor, axis, count)
        return tensor
    check = tf.debugging.assert_equal(
        rows % count,
        tf.zeros([], rows.dtype),
        message=(
            f"A batch cannot be dealt to {count} replicas evenly: "
            f"{tensor}. Batch the dataset with drop_remainder=True."
        ),
    )
    with tf.control_dependencies([check]):
        return tf.nest.map_structure(
            tf.identity, tensor, expand_composites=True
        )


def _uneven(tensor: Any, axis: int, count: int) -> errors.ArgumentError:
    return errors.ArgumentError(
        f"A batch of shape {tensor.shape} cannot be dealt to {count} "
        f"replicas evenly along dimension {axis}: {tensor}. input_fn must "
        "give batches of params['batch_size'] rows."
    )


_NAMES = ("feature", "label")


def check_partitions(
    dims: Sequence[Any], features: Any, labels: Any, cores: int
) -> None:
    """Checks `TPUConfig.input_partition_dims` against the tensors it splits.

    Args:
      dims: One or two structures, for features and labels.
      features, labels: Nested tensors of a replica; labels may be None.
      cores: The number of parts of a tensor.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) the structures differ, or
        a tensor cannot be split as given.
    """
    for place, structure in enumerate((features, labels)):
        if structure is None or place >= len(dims) or dims[place] is None:
            continue
        keys = _keys(structure)
        if keys != _keys(dims[place]):
            raise errors.ArgumentError(
                f"TPUConfig.input_partition_dims[{place}] mismatched "
                f"{_NAMES[place]} keys. Expected {keys}, got "
                f"{_keys(dims[place])}."
            )
        _check(dims[place], structure, _Whose(place, cores), "")


class _Whose:
    """Names the tensor that dimensions belong to, in error texts."""

    def __init__(self, place: int, cores: int) -> None:
        self.place = place
        self.cores = cores

    def mismatch(self, dims: Any, structure: Any) -> errors.ArgumentError:
        return errors.ArgumentError(
            f"TPUConfig.input_partition_dims[{self.place}] mismatched the "
            f"structure of {_NAMES[self.place]}s. It needs a list of parts, or "
            f"None, for each tensor: got {dims!r} for {structure!r}."
        )


def _keys(structure: Any) -> list[str]:
    return sorted(structure) if isinstance(structure, Mapping) else []


def _check(dims: Any, structure: Any, whose: _Whose, path: str) -> None:
    if isinstance(structure, Mapping):
        if not isinstance(dims, Mapping) or set(dims) != set(structure):
            raise whose.mismatch(dims, structure)
        for key, value in structure.items():
            _check(dims[key], value, whose, f"{path}['{key}']")
    elif isinstance(structure, (tuple, list)):
        if not isinstance(dims, (tuple, list)) or len(dims) != len(structure):
            raise whose.mismatch(dims, structure)
        for i, value in enumerate(structure):
            _check(dims[i], value, whose, f"{path}[{i}]")
    elif dims is not None:
        _check_tensor(dims, structure, whose, path)


def _check_tensor(dims: Any, tensor: Any, whose: _Whose, path: str) -> None:
    owner = f"{_NAMES[whose.place]}s{path}"
    if not isinstance(dims, (tuple, list)):
        raise whose.mismatch(dims, tensor)
    if any(part < 1 for part in dims):
        raise errors.ArgumentError(
            f"All input partition dims must be >= 1. Given {list(dims)} for "
            f"{owner}."
        )
    parts = math.prod(dims)
    if parts == 1:
        return
    if parts != whose.cores:
        raise errors.ArgumentError(
            "The product of each input partition dim should equal to "
            f"num_cores_per_replica. Given {list(dims)} for {owner}, and "
            f"num_cores_per_replica is {whose.cores}."
        )
    if tensor.shape.rank != len(dims):
        raise errors.ArgumentError(
            "Input partition dims must have the same number of dimensions as "
            f"the tensor they cut. Given {list(dims)} for {owner} of shape "
            f"{tensor.shape}."
        )
