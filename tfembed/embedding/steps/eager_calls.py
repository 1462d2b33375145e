"""Traced functions for eager calls that are made often.

A step of 26 features runs hundreds of TensorFlow ops: 20 ms of Python if they
are called one by one, 1 ms if each call of a step is one function. A trace
takes a second, so the first calls run untraced.

The time is spent in TensorFlow's ops and not in tfembed's Python code, so
shorter code would not replace the functions: docs/lab/journal.md has the times
of a step with and without them.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.config.custom_combiner import is_custom
from tfembed.embedding import private
from tfembed.embedding.engines.choice import EngineChoices
from tfembed.embedding.features.packed_features import PackedFeatures, assemble
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.steps.step_forms import StepName

__all__ = ["EagerCalls"]


def _taken_apart(values: Sequence[Any]) -> tuple[Hashable, list[tf.Tensor]]:
    """Converts users' inputs to a key and tensors, for a call of a function.

    Args:
      values: eager Tensors, SparseTensors, RaggedTensors or None.

    Returns:
      A key, or None if an input has an unknown type; and the tensors of all
      inputs, in the order of tf.nest.flatten with expand_composites. Inputs of
      equal keys have equal specs, but may differ in the number of ids and in
      the ids of the longest sample.
    """
    keys: list[Hashable] = []
    tensors: list[tf.Tensor] = []
    for value in values:
        if value is None:
            keys.append(None)
            continue
        key, own = _key_of(value)
        if key is None:
            return None, []
        keys.append(key)
        tensors += own
    return tuple(keys), tensors


def _key_of(value: Any) -> tuple[Hashable, list[tf.Tensor]]:
    """Returns the key of an input, or None, and its tensors."""
    # Keys are numbers and tuples: TensorFlow's shapes and specs compare slowly.
    if isinstance(value, tf.SparseTensor):
        samples = tuple(value.shape.as_list()[:-1])
        own = [value.indices, value.values, value.dense_shape]
        return ("sparse", value.dtype.as_datatype_enum, samples), own
    if isinstance(value, tf.RaggedTensor):
        if value.ragged_rank != 1 or value.flat_values.shape.rank != 1:
            return None, []
        splits = value.row_splits
        dtypes = value.dtype.as_datatype_enum, splits.dtype.as_datatype_enum
        own = [value.flat_values, splits]
        return ("ragged", *dtypes, splits.shape[0]), own
    if isinstance(value, tf.Tensor):
        shape = tuple(value.shape.as_list())
        return ("dense", value.dtype.as_datatype_enum, shape), [value]
    return None, []


def _spec(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec([*value.shape[:-1], None], value.dtype)
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            [value.shape[0], None],
            value.dtype,
            ragged_rank=1,
            row_splits_dtype=value.row_splits.dtype,
        )
    return tf.TensorSpec(value.shape, value.dtype)


_AS_THEY_ARE = 8

_MOST_FUNCTIONS = 256

_COUNTED = 1024  # The most kinds of calls; a new name in each step makes three.


class EagerCalls:
    """The traced functions of one object's eager calls.

    Users' functions for combiners, update rules and learning rates must run in
    Python in every eager step: objects with such functions are not traced.

    Args:
      plan: the plan of the features and tables.
      choices: the engines of the tables.
      is_pipelined: whether updates wait for the next step.
    """

    def __init__(
        self, plan: EmbeddingPlan, choices: EngineChoices, *, is_pipelined: bool
    ) -> None:
        self._plan = plan
        self._can_trace = (
            not is_pipelined
            and choices.all_on_host
            and not any(is_custom(table.combiner) for table in plan.tables)
            and all(_is_plain(rule) for rule in plan.optimizers)
        )
        self._counts: collections.Counter[Hashable] = collections.Counter()
        self._functions: dict[Hashable, Callable[..., Any]] = {}
        self._returned: dict[Callable[..., Any], Any] = {}

    def find(
        self,
        key: Hashable,
        body: Callable[..., Any],
        specs: Callable[[], Sequence[tf.TensorSpec]] = tuple,
    ) -> Callable[..., Any] | None:
        """Returns a traced function of `body`; None until calls are frequent.

        Args:
          key: all that the trace depends on, besides the tensors' values.
          body: the Python function to trace; called in a graph with tensors.
          specs: a function that returns the specs of the arguments, all
            tensors. The key determines them, so that a call need not search for
            a matching trace or check its arguments, which would take longer
            than the call itself.
        """
        return self._find(key, body, specs) if self._is_on() else None

    def _find(
        self,
        key: Hashable,
        body: Callable[..., Any],
        specs: Callable[[], Sequence[tf.TensorSpec]],
    ) -> Callable[..., Any] | None:
        function = self._functions.get(key)
        if function is not None:
            return function
        if len(self._functions) >= _MOST_FUNCTIONS:
            return None  # Too many kinds, as with ever new names.
        self._counts[key] += 1
        if self._counts[key] <= _AS_THEY_ARE:
            if len(self._counts) > _COUNTED:
                self._counts.clear()  # Frequent calls will count up again.
            return None
        del self._counts[key]
        traced = tf.function(body, autograph=False)
        function = private.unchecked_call(
            traced.get_concrete_function(*specs())
        )
        self._functions[key] = function
        return function

    def _is_on(self) -> bool:
        return (
            self._can_trace
            and tf.executing_eagerly()
            and not tf.config.functions_run_eagerly()
            and not tf.distribute.has_strategy()
        )

    def enqueue(
        self,
        enqueue: Callable[..., Any],
        features: Any,
        weights: Any,
        *rest: Any,
    ) -> Any:
        """Enqueues a batch by a traced function; returns None if there is none.

        Args:
          enqueue: the object's enqueue.
          features, weights: arguments of enqueue.
          rest: the other arguments: training, name and device.

        Returns:
          The value that `enqueue` returned when it was traced.
        """
        if type(rest[0]) is not bool or not self._is_on():
            return None
        if not isinstance(features, PackedFeatures):
            return self._enqueue_inputs(enqueue, features, weights, *rest)
        if weights is not None:
            return None
        form, tensors = features.form, features.tensors
        dtypes = [one.dtype for one in tensors]
        return self._call_noting(
            ("enqueue", *rest, form, *dtypes),
            lambda *parts: enqueue(assemble(parts, form), None, *rest),
            lambda: features.specs,
            tensors,
        )

    def _enqueue_inputs(
        self,
        enqueue: Callable[..., Any],
        features: Any,
        weights: Any,
        *rest: Any,
    ) -> Any:
        """Lists the inputs of a structure."""
        if isinstance(features, tf.distribute.DistributedValues):
            return None  # There are none of packed batches.
        flat = self._plan.flatten_inputs(features, "features")
        if weights is not None:
            flat = [*flat, *self._plan.flatten_inputs(weights, "weights")]
        inputs_key, tensors = _taken_apart(flat)
        if inputs_key is None:
            return None
        plan, n = self._plan, len(self._plan.features)
        is_given = [one is not None for one in flat]

        def body(*values: Any) -> Any:
            left = iter(values)
            given = [next(left) if is_one else None for is_one in is_given]
            of_samples = plan.pack(given[n:]) if given[n:] else None
            return enqueue(plan.pack(given[:n]), of_samples, *rest)

        return self._call_noting(
            ("enqueue", *rest, inputs_key),
            body,
            lambda: [_spec(value) for value in flat if value is not None],
            tensors,
        )

    def _call_noting(
        self,
        key: Hashable,
        body: Callable[..., Any],
        specs: Callable[[], Sequence[tf.TensorSpec]],
        tensors: Sequence[tf.Tensor],
    ) -> Any:
        """Calls a function; returns the traced result of `body`, or None."""
        traced = []

        def noted(*values: Any) -> None:
            traced.append(body(*values))

        function = self._find(key, noted, specs)
        if function is None:
            return None
        if traced:
            (self._returned[function],) = traced
        function(*tensors)
        return self._returned[function]

    def apply_gradients(
        self, apply: Callable[..., None], flat: Sequence[Any], step: StepName
    ) -> bool:
        """Applies flat gradients by a function, and says whether it did."""
        if not self._is_on():
            return False
        key: list[Hashable] = ["apply_gradients", step]
        for one in flat:
            if not isinstance(one, tf.Tensor):
                return False
            # Keys are numbers: TensorFlow's shapes and specs compare slowly.
            key.append(tuple(one.shape.as_list()))
            key.append(one.dtype.as_datatype_enum)
        function = self._find(
            tuple(key),
            apply,
            lambda: [tf.TensorSpec(one.shape, one.dtype) for one in flat],
        )
        if function is not None:
            function(*flat)
        return function is not None


def _is_plain(rule: Any) -> bool:
    return rule is None or (rule.is_fused and not callable(rule.learning_rate))
