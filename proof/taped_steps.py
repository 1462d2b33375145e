"""TPUEmbeddingV0's programs as TensorFlow functions: a tape, and an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

import tfembed
from proof.programs import LEARNING_RATE, Program
from proof.steps import Step
from tfembed.embedding.lookups.static_lookup import look_up_static
from tfembed.embedding.xla.stack import StackRows
from tfembed.embedding.xla.taped_shards import TapedProgram
from tfembed.foreign_optimizers.keras_family import FusedRule, KerasRows
from tfembed.foreign_optimizers.rules import RowRule

__all__ = ["TapedStep"]


class TapedStep(Step):
    """As Step, but features are those of V0, and gradients come from a tape.

    The outputs have the rounds of the lookup alone.
    """

    def __init__(self, program: Program, replicas: int) -> None:
        super().__init__(program, replicas)
        self._features = self.plan.features
        self._program = TapedProgram(self.plan.tables, [self.stack])
        self._moves, self.rule = _moves_of(program)

    @property
    def slots(self) -> list[tuple[str, int, float]]:
        """As Step's."""
        width = self.program.width
        return [
            (name, width, value)
            for name, value in self.rule.slot_initial_values.items()
        ]

    @property
    def state_shapes(self) -> list[list[int]]:
        """As Step's."""
        return [list(self.stack.shapes()[0])] * (1 + len(self.slots))

    def run(self, *inputs: tf.Tensor) -> list[tf.Tensor]:
        """The step."""
        p = self.program
        state = len(self.state_shapes)
        ids, *weights, targets = inputs[state:]
        tables = {
            table: tf.zeros([0, p.width])
            for table in range(len(p.vocabularies))
        }
        rounds = []

        def find_rows(
            wanted: Sequence[tuple[Any, tf.Tensor]],
        ) -> list[tf.Tensor]:
            places = [self.plan.tables.index(config) for config, _ in wanted]
            found = self._program.look_up(
                {0: inputs[0]},
                tables,
                {
                    place: of_table
                    for place, (_, of_table) in zip(places, wanted, strict=True)
                },
            )
            rounds.append(found.rounds[0])
            return found.rows

        with tf.GradientTape() as tape:
            tape.watch(tables)
            activations = look_up_static(
                [(f"feature {i}", one) for i, one in enumerate(self._features)],
                self._sparse(ids),
                self._sparse(weights[0])
                if weights
                else [None] * len(self._features),
                find_rows,
            )
        result = tf.stack(activations, 1)
        gradients = tape.gradient(
            activations, tables, tf.unstack(result - targets, axis=1)
        )
        new = self._program.train(
            self._moves,
            {0: StackRows(inputs[0], inputs[1:state])},
            gradients,
            tf.constant(LEARNING_RATE),
        )[0]
        return [new.values, *new.slots, result, rounds[0]]

    def _sparse(self, matrix: tf.Tensor) -> list[tf.SparseTensor]:
        """Of each feature; its padding, an id of -1, stays in it."""
        p = self.program
        places = [[i, j] for i in range(p.batch) for j in range(p.length)]
        return [
            tf.SparseTensor(
                tf.constant(places, tf.int64),
                tf.reshape(part, [-1]),
                [p.batch, p.length],
            )
            for part in tf.split(matrix, len(p.features), 1)
        ]


def _moves_of(program: Program) -> tuple[FusedRule | RowRule, Any]:
    """How rows move, and what has the slots."""
    if program.taped == "fused":
        rule = getattr(tfembed.optimizers, program.rule)(LEARNING_RATE)
        return FusedRule(rule), rule
    # Of the optimizer's own updates, the one that the oracle has by another name.
    own = KerasRows(keras.optimizers.SGD(LEARNING_RATE, momentum=0.9))
    return own, own
