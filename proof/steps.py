"""The programs as TensorFlow functions: the package's own, and a model of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

import tfembed
from proof.programs import LEARNING_RATE, Program
from tfembed import optimizers
from tfembed.embedding.plan import EmbeddingPlan, make_plan
from tfembed.embedding.xla.entries import Entries, entries_of_matrix
from tfembed.embedding.xla.program import TablesProgram
from tfembed.embedding.xla.stack import StackRows, stacks_of
from tfembed.ops import FeaturePlan

__all__ = ["Step", "optimizer_of"]


def optimizer_of(program: Program) -> optimizers.Optimizer | None:
    """The update rule of a program, or None."""
    if not program.rule:
        return None
    made = getattr(tfembed.optimizers, program.rule)
    return made(LEARNING_RATE)


def _plan_of(
    program: Program, rule: optimizers.Optimizer | None
) -> EmbeddingPlan:
    tables = [
        tfembed.TableConfig(
            size,
            program.width,
            name=f"table_{i}",
            combiner=program.combiner or "mean",
        )
        for i, size in enumerate(program.vocabularies)
    ]
    return make_plan(
        [
            tfembed.FeatureConfig(
                tables[table],
                max_sequence_length=0 if program.combiner else program.length,
            )
            for table in program.features
        ],
        rule,
    )


class Step:
    """One replica's step as a function of tensors.

    Inputs: the rows, each slot, the dense weights and biases of a DLRM; ids
    [batch, features * length], -1 for none; weights of the same shape where the
    program is weighted; for a training step the targets, of the activations'
    shape, or for a DLRM dense [batch, dense] and labels [batch].

    Outputs: for a training step the new rows, slots, weights and biases; the
    activations, or for a DLRM the logits; the rounds of lookup and update.

    Args:
      program: what it does.
      replicas: how many run it.
    """

    def __init__(self, program: Program, replicas: int) -> None:
        self.program = program
        self.replicas = replicas
        self.rule = optimizer_of(program)
        self.plan = _plan_of(program, self.rule)
        stacks = stacks_of(
            self.plan, replicas, buffer=program.buffer, portable=True
        )
        (self.stack,) = stacks
        self._tables = TablesProgram(self.plan.tables, stacks)

    @property
    def buffer(self) -> int:
        """Ids to one replica in a round."""
        return self.stack.exchange_for(self.program.ids).buffer

    @property
    def slots(self) -> list[tuple[str, int, float]]:
        """Per slot its name, width and initial value."""
        if self.rule is None:
            return []
        return [
            (
                name,
                self.rule.slot_shape(name, (1, self.program.width))[1],
                value,
            )
            for name, value in self.rule.slot_initial_values.items()
        ]

    @property
    def state_shapes(self) -> list[list[int]]:
        """What a step changes, or reads of tables."""
        shapes = [list(shape) for shape in self.stack.shapes()]
        for inputs, outputs in self.program.layers():
            shapes += [[inputs, outputs], [outputs]]
        return shapes

    def specs(self) -> list[tf.TensorSpec]:
        """The inputs."""
        p = self.program
        ids = [p.batch, len(p.features) * p.length]
        specs = [tf.TensorSpec(shape) for shape in self.state_shapes]
        specs.append(tf.TensorSpec(ids, tf.int32))
        if p.weighted:
            specs.append(tf.TensorSpec(ids))
        if p.is_dlrm:
            specs += [
                tf.TensorSpec([p.batch, p.dense]),
                tf.TensorSpec([p.batch]),
            ]
        elif p.rule:
            places = [] if p.combiner else [p.length]
            shape = [p.batch, len(p.features), *places, p.width]
            specs.append(tf.TensorSpec(shape))
        return specs

    def function(self) -> Callable[..., object]:
        """The step, for XLA."""
        return tf.function(
            self.run, jit_compile=True, input_signature=self.specs()
        )

    def run(self, *inputs: tf.Tensor) -> list[tf.Tensor]:
        """The step."""
        p = self.program
        state = len(self.state_shapes)
        rest = list(inputs[state:])
        ids = rest.pop(0)
        entries = self._entries(ids, rest.pop(0) if p.weighted else None)
        rows = {0: StackRows(inputs[0], inputs[1 : 1 + len(self.slots)])}
        looked = self._tables.look_up(rows, entries)
        activations = tf.stack(looked.activations, 1)
        if not p.rule:
            return [activations, looked.rounds[0]]
        dense = list(inputs[1 + len(self.slots) : state])
        if p.is_dlrm:
            result, slopes, dense = self._model(activations, dense, *rest)
        else:
            result, slopes = activations, activations - rest[0]
        updated = self._tables.update(
            rows,
            entries,
            tf.unstack(slopes, axis=1),
            [LEARNING_RATE] * len(p.vocabularies),
        )[0]
        return [
            updated.values,
            *updated.slots,
            *dense,
            result,
            looked.rounds[0],
            updated.rounds,
        ]

    def _entries(
        self, ids: tf.Tensor, weights: tf.Tensor | None
    ) -> list[Entries]:
        """Of each feature, by ids [batch, features * length]."""
        p = self.program
        n = len(p.features)
        of_features = tf.split(ids, n, 1)
        of_weights = [None] * n if weights is None else tf.split(weights, n, 1)
        return [
            entries_of_matrix(
                of_features[i],
                of_weights[i],
                FeaturePlan(table, p.combiner, 0 if p.combiner else p.length),
                p.vocabularies[table],
            )
            for i, table in enumerate(p.features)
        ]

    def _model(
        self,
        activations: tf.Tensor,
        dense_state: Sequence[tf.Tensor],
        dense: tf.Tensor,
        labels: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Logits, gradients of the activations, new weights and biases."""
        p = self.program
        everyone = [list(range(self.replicas))]
        with tf.GradientTape() as tape:
            tape.watch([activations, *dense_state])
            layers = list(zip(dense_state[::2], dense_state[1::2], strict=True))
            bottom, top = (
                layers[: len(p.bottom) + 1],
                layers[len(p.bottom) + 1 :],
            )
            x = dense
            for weight, bias in bottom:
                x = tf.nn.relu(tf.matmul(x, weight) + bias)
            vectors = tf.concat([x[:, None], activations], 1)
            products = tf.matmul(vectors, vectors, transpose_b=True)
            n = len(p.features) + 1
            pairs = [i * n + j for i in range(n) for j in range(i)]
            products = tf.gather(
                tf.reshape(products, [p.batch, -1]), pairs, axis=1
            )
            y = tf.concat([x, products], 1)
            for i, (weight, bias) in enumerate(top):
                y = tf.matmul(y, weight) + bias
                if i < len(top) - 1:
                    y = tf.nn.relu(y)
            logits = y[:, 0]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / (p.batch * self.replicas)
        slopes, *of_dense = tape.gradient(loss, [activations, *dense_state])
        new = []
        for value, gradient in zip(dense_state, of_dense, strict=True):
            total = gradient
            if self.replicas > 1:
                total = tf.raw_ops.CrossReplicaSum(
                    input=gradient, group_assignment=everyone
                )
            new.append(value - LEARNING_RATE * total)
        return logits, slopes, new
