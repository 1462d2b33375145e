"""Calls of an input_fn: its arguments, its result, its iterator's start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfembed.errors import ArgumentError
from tfembed.estimator import private


class DatasetInitializerHook(tf.compat.v1.train.SessionRunHook):
    """Starts a dataset's iterator when a session has been made.

    Attributes:
      iterator: the iterator.
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self._initializer: Any = None

    def begin(self) -> None:
        """Makes the op: the graph is finalized afterwards."""
        self._initializer = self.iterator.initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Starts the iterator."""
        del coord
        session.run(self._initializer)


def call_with_known(
    function: Callable[..., Any], offered: Mapping[str, Any]
) -> Any:
    """Calls a function with those of the arguments that it takes."""
    arguments = private.fn_args(function)
    return function(
        **{key: offered[key] for key in offered if key in arguments}
    )


def parse_input_fn_result(result: Any) -> tuple[Any, Any, list[Any]]:
    """Returns features, labels, and the hooks that start the input.

    Args:
      result: a Dataset of features or of (features, labels), or these.

    Raises:
      ValueError: The result, or a Dataset's element, is a tuple of another
        length.
    """
    hooks: list[Any] = []
    if isinstance(result, tf.compat.v2.data.Dataset):
        iterator = tf.compat.v1.data.make_initializable_iterator(result)
        hooks.append(DatasetInitializerHook(iterator))
        result = iterator.get_next()
    features, labels = parse_iterator_result(result)
    return features, labels, hooks


def parse_iterator_result(result: Any) -> tuple[Any, Any]:
    """Returns features and labels (None if there are none).

    Raises:
      ValueError: The result is None, or a tuple of another length than 2.
    """
    if result is None:
        raise ArgumentError(
            "input_fn returned None. Return a tf.data.Dataset, features, or "
            "(features, labels)."
        )
    if not isinstance(result, (list, tuple)):
        return result, None
    if len(result) != 2:
        raise ArgumentError(
            "input_fn should return (features, labels) as a len 2 tuple. "
            f"Given a {type(result).__name__} of {len(result)} elements."
        )
    return result[0], result[1]


def reads_forever(features: Any) -> bool:
    """Whether nothing in the graph would end the input: no dataset, no queue."""
    if any(
        isinstance(value, tf.Tensor) and value.op.type == "IteratorGetNext"
        for value in leaves(features)
    ):
        return False
    return not tf.compat.v1.get_collection("queue_runners")


def leaves(features: Any) -> Iterator[Any]:
    """Yields the values of nested dicts, lists and tuples, in their order.

    Unlike tf.nest, dicts may have keys that cannot be compared.
    """
    if isinstance(features, Mapping):
        features = list(features.values())
    if isinstance(features, (list, tuple)) and not hasattr(features, "dtype"):
        for value in features:
            yield from leaves(value)
    else:
        yield features
