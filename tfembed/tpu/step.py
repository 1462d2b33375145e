"""The tables' part of a training step on a TPU, as one replica runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.xla_stack import stacked_tables
from tfembed.ops import exchange

__all__ = ["TablesStep"]


@dataclasses.dataclass(frozen=True, eq=False)
class _Stack:
    """Tables of one width and update rule, and their features."""

    rule: Any
    width: int
    tables: tuple[int, ...]
    features: tuple[int, ...]


class TablesStep:
    """Looks all features up, and updates their tables by given gradients.

    Args:
      plan: of static tables with fused rules.
      replicas: how many run it.
      batch_size: the samples of a replica.
      lengths: per feature, the ids of a sample.
    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        replicas: int,
        batch_size: int,
        lengths: Sequence[int],
    ) -> None:
        self._plan = plan
        self._replicas = replicas
        self._batch = batch_size
        self._lengths = lengths
        self._rows = [
            exchange.shard_rows(config.vocabulary_size, replicas)
            for config in plan.tables
        ]
        self._stacks = self._stacked()

    def table_bytes(self) -> int:
        """Tables and slots of one replica."""
        return sum(
            4 * shape[0] * shape[1]
            for stack in self._stacks
            for shape in self._shapes(stack)
        )

    @property
    def state(self) -> int:
        """How many inputs come first and come back: tables and slots."""
        return sum(len(self._shapes(stack)) for stack in self._stacks)

    def stablehlo(self) -> str:
        """The step as XLA's portable text.

        Raises:
          tfembed.errors.UnsupportedError: this TensorFlow cannot write it.
        """
        function = tf.function(
            self._run, jit_compile=True, input_signature=self._specs()
        )
        lower = function.experimental_get_compiler_ir(*self._specs())
        try:
            return str(lower(stage="stablehlo"))
        except ValueError as error:
            raise errors.UnsupportedError(
                f"TensorFlow {tf.__version__} does not write programs as "
                f"StableHLO, which the TPU compiler reads. Use 2.20. ({error})"
            ) from None

    def _stacked(self) -> list[_Stack]:
        return [
            _Stack(
                self._plan.optimizers[tables[0]],
                self._plan.dims[tables[0]],
                tables,
                tuple(
                    i
                    for i, table in enumerate(self._plan.table_ids)
                    if table in tables
                ),
            )
            for tables in stacked_tables(self._plan)
        ]

    def _shapes(self, stack: _Stack) -> list[tuple[int, int]]:
        shape = (sum(self._rows[t] for t in stack.tables), stack.width)
        if stack.rule is None:
            return [shape]
        return [
            shape,
            *[stack.rule.slot_shape(s, shape) for s in stack.rule.slot_names],
        ]

    def _specs(self) -> list[tf.TensorSpec]:
        specs = [
            tf.TensorSpec(shape)
            for stack in self._stacks
            for shape in self._shapes(stack)
        ]
        for i in range(len(self._plan.features)):
            shape = [self._batch, self._lengths[i]]
            specs += [tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape)]
            specs.append(tf.TensorSpec(self._activation_shape(i)))
        return specs

    def _activation_shape(self, i: int) -> list[int]:
        places = [self._lengths[i]] if self._is_sequence(i) else []
        return [self._batch, *places, self._plan.dim(i)]

    def _is_sequence(self, i: int) -> bool:
        return self._plan.features[i].max_sequence_length > 0

    def _run(self, *inputs: tf.Tensor) -> list[tf.Tensor]:
        """New tables and slots, then the activations."""
        state, of_features = inputs[: self.state], inputs[self.state :]
        new: list[tf.Tensor] = []
        activations: dict[int, tf.Tensor] = {}
        for stack in self._stacks:
            count = len(self._shapes(stack))
            own, state = state[:count], state[count:]
            ids, factors = {}, {}
            for i in stack.features:
                raw, weights, _ = of_features[3 * i : 3 * i + 3]
                ids[i] = self._stack_ids(stack, i, raw)
                factors[i] = self._factors(i, ids[i], weights)
            flat = tf.concat([tf.reshape(ids[i], [-1]) for i in ids], 0)
            rounds = exchange.Exchange.for_ids(
                self._replicas, flat.shape[0], portable=True
            )
            found = exchange.lookup(own[0], flat, rounds)
            sizes = [self._batch * self._lengths[i] for i in ids]
            slopes = []
            for i, rows in zip(
                ids, tf.split(found.rows, sizes) if ids else [], strict=True
            ):
                shape = [self._batch, self._lengths[i], stack.width]
                weighted = tf.reshape(rows, shape) * factors[i][..., None]
                slope = of_features[3 * i + 2]
                if self._is_sequence(i):
                    activations[i] = weighted
                else:
                    activations[i] = tf.reduce_sum(weighted, 1)
                    slope = slope[:, None]
                slope = slope * factors[i][..., None]
                slopes.append(tf.reshape(slope, [-1, stack.width]))
            if stack.rule is None:
                new += own
                continue
            updated = exchange.update(
                own[0],
                own[1:],
                flat,
                tf.concat(slopes, 0),
                0.01,
                rounds,
                rule=stack.rule.rule_text(),
                table_rows=[self._rows[t] for t in stack.tables],
            )
            new += [updated.values, *updated.slots]
        return [*new, *[activations[i] for i in range(len(activations))]]

    def _stack_ids(self, stack: _Stack, i: int, ids: tf.Tensor) -> tf.Tensor:
        table = self._plan.table_ids[i]
        return exchange.stacked_ids(
            ids,
            table=stack.tables.index(table),
            table_rows=[self._rows[t] for t in stack.tables],
            replicas=self._replicas,
            vocabulary=self._plan.tables[table].vocabulary_size,
        )

    def _factors(self, i: int, ids: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """What each row is multiplied by before rows are summed."""
        weights = weights * tf.cast(ids >= 0, tf.float32)
        combiner = self._plan.tables[self._plan.table_ids[i]].combiner
        if combiner == "sum" or self._is_sequence(i):
            return weights
        of_bag = weights**2 if combiner == "sqrtn" else weights
        norm = tf.reduce_sum(of_bag, -1, keepdims=True)
        norm = tf.sqrt(norm) if combiner == "sqrtn" else norm
        return tf.math.divide_no_nan(weights, norm)


def ids_per_sample(
    plan: EmbeddingPlan, given: int | Mapping[str, int]
) -> list[int]:
    """Per feature, the ids of a sample: a sequence's length, else as given."""
    return [
        feature.max_sequence_length
        or (given if isinstance(given, int) else given.get(path, 1))
        for feature, path in zip(plan.features, plan.paths, strict=True)
    ]
