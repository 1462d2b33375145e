"""model_fns under a `tf.distribute.Strategy` of one process."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfembed.errors import UnsupportedError
from tfembed.estimator.models.input_functions import parse_iterator_result
from tfembed.estimator.spec import EstimatorSpec

_KNOWN = ("MirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy")


class StrategyInputHook(tf.compat.v1.train.SessionRunHook):
    """Initializes a strategy's iterators after a session is created."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._initializer: Any = None

    def begin(self) -> None:
        """Makes the op before the graph is finalized."""
        self._initializer = self._iterator.initialize()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Initializes the iterators."""
        del coord
        session.run(self._initializer)


def check_strategy(strategy: Any) -> None:
    """Raises an error for a strategy that an Estimator does not support.

    Raises:
      NotImplementedError: The strategy is not supported.
    """
    if strategy is None:
        return
    name = type(strategy).__name__
    if name.removesuffix("V1") in _KNOWN:
        return
    hint = (
        "Use tfembed.estimator.tpu.TPUEstimator"
        if name.startswith("TPUStrategy")
        else "For several processes, use no strategy, and TF_CONFIG with "
        "train_and_evaluate: a chief, workers and parameter servers"
    )
    raise UnsupportedError(
        f"An Estimator does not run under {name}; it runs under {_KNOWN}. "
        f"{hint}."
    )


def add_cpus(session_config: Any, strategy: Any) -> None:
    """Gives sessions the logical CPUs of a strategy, as eager mode has them.

    A session places ops of a missing CPU on its first CPU, where replicas
    would wait for each other forever.
    """
    if strategy is None:
        return
    for name in strategy.extended.worker_devices:
        device = tf.DeviceSpec.from_string(name)
        if device.device_type == "CPU":
            counts = session_config.device_count
            counts["CPU"] = max(counts["CPU"], device.device_index + 1)


@contextlib.contextmanager
def training_scope(strategy: Any) -> Iterator[None]:
    """Enters the strategy's scope; v1 optimizers then divide the losses."""
    scale = getattr(strategy, "_scale_loss_for_estimator_enabled", None)
    with strategy.scope(), scale() if scale else contextlib.nullcontext():
        yield


def call_per_replica(
    strategy: Any,
    call_model_fn: Callable[..., EstimatorSpec],
    iterator: Any,
    mode: str,
    config: Any,
) -> Any:
    """Calls the model_fn in each replica.

    Returns:
      An EstimatorSpec whose fields have a value per replica.
    """
    features, labels = parse_iterator_result(iterator.get_next())
    state = random.getstate()  # Replicas run in turns, and change the state.
    try:
        return strategy.extended.call_for_each_replica(
            call_model_fn, args=(features, labels, mode, config)
        )
    finally:
        random.setstate(state)


def training_spec(strategy: Any, grouped: Any) -> EstimatorSpec:
    """Merges the replicas' specs of mode TRAIN."""
    graph = tf.compat.v1.get_default_graph()
    reduction = tf.distribute.ReduceOp.SUM
    if getattr(graph, "_is_loss_scaled_by_optimizer", False):
        reduction = tf.compat.v1.distribute.get_loss_reduction()
    return EstimatorSpec(
        mode=grouped.mode,
        loss=strategy.reduce(reduction, grouped.loss, axis=None),
        train_op=strategy.group(grouped.train_op),
        training_hooks=_first_of_each(strategy, grouped.training_hooks),
        training_chief_hooks=_first_of_each(
            strategy, grouped.training_chief_hooks
        ),
        scaffold=joined_scaffold(strategy, grouped.scaffold),
    )


def evaluation(
    strategy: Any, metrics: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Merges the replicas' metrics of mode EVAL.

    Args:
      strategy: the strategy.
      metrics: pairs (value, update op) per replica, by name.

    Returns:
      The op that updates all metrics, and their values by name.
    """
    names = sorted(metrics)
    updates = [strategy.group(metrics[name][1]) for name in names]
    return tf.group(*updates), {name: metrics[name][0] for name in names}


def evaluation_hooks(strategy: Any, grouped: Any) -> list[Any]:
    """Returns the hooks of the first replica."""
    return _first_of_each(strategy, grouped.evaluation_hooks)


def joined_scaffold(strategy: Any, grouped: Any) -> Any:
    """Merges the replicas' scaffolds.

    `init_op` and `local_init_op` run those of all replicas; each other field
    is that of the first replica that has one.
    """
    scaffolds = strategy.experimental_local_results(grouped)

    def given(name: str) -> list[Any]:
        values = [getattr(scaffold, name) for scaffold in scaffolds]
        return [value for value in values if value is not None]

    def grouped_op(name: str) -> Any:
        ops = given(name)
        return tf.group(*ops) if ops else None

    def first(name: str) -> Any:
        return next(iter(given(name)), None)

    return tf.compat.v1.train.Scaffold(
        init_op=grouped_op("init_op"),
        local_init_op=grouped_op("local_init_op"),
        ready_op=first("ready_op"),
        ready_for_local_init_op=first("ready_for_local_init_op"),
        summary_op=first("summary_op"),
        saver=first("saver"),
        init_feed_dict=first("init_feed_dict"),
        init_fn=first("_user_init_fn"),
    )


def _first_of_each(strategy: Any, values: Any) -> list[Any]:
    return [
        strategy.experimental_local_results(value)[0] for value in values or ()
    ]
