"""Optimizers that cannot run on single rows, and rows that none can train."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.optimizer_makers import V1, K
from tests.dynamic_embedding.plain_sgd import PlainSgd, column, slices, wrapped
from tfembed import errors, policies


def test_a_second_optimizer_on_a_table_is_refused():
    v = de.Variable()
    wrapped(PlainSgd()).apply_gradients([(slices([1], [[1.0]]), v)])
    for other in (K.RMSprop(), K.Adam(), V1.MomentumOptimizer(1.0, 0.5)):
        with pytest.raises(ValueError, match="cannot take"):
            wrapped(other).apply_gradients([(slices([1], [[1.0]]), v)])
    assert column(v, [1]) == [-1]


# A trace knows the slots by their place in a row. Fused updates compare the rule
# (tests/tables/test_training.py); reads and writes of slots did the widths alone.


def test_a_function_traced_with_another_rule_of_as_wide_slots_is_refused():
    v = de.Variable(dim=2)

    def step_of(optimizer):
        optimizer = wrapped(optimizer)
        return tf.function(
            lambda: optimizer.apply_gradients([(slices([1], [[1.0, 1.0]]), v)])
        )

    first = step_of(K.Adadelta(0.1))
    first()
    v.table.detach()
    step_of(K.Adamax(0.1))()
    before = [x.numpy().tolist() for x in v.table.export_slots()[1].values()]

    with pytest.raises(
        tf.errors.FailedPreconditionError,
        match=r"Variable'.*dadelta.*damax.*again",
    ):
        first()

    after = [x.numpy().tolist() for x in v.table.export_slots()[1].values()]
    assert after == before


class WholeNorm(PlainSgd):
    def update_step(self, gradient, variable, learning_rate):
        norm = tf.norm(tf.convert_to_tensor(gradient))
        self.assign_sub(variable, gradient / norm * learning_rate)


class ManySlots(PlainSgd):
    def build(self, variables):
        super().build(variables)
        names = [f"slot_{i}" for i in range(5)]
        self.slots = self.add_optimizer_variables(variables, names)


class ColumnMeans(PlainSgd):
    def build(self, variables):
        super().build(variables)
        self.means = [self.add_variable([v.shape[1]]) for v in variables]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: K.Adafactor(), "means over whole rows"),
        (lambda: K.Lamb(), "norms of the whole variable"),
        (lambda: K.LossScaleOptimizer(K.SGD()), "wraps another one"),
        (lambda: K.Adam(use_ema=True), "averages move for all rows"),
        (lambda: K.SGD(gradient_accumulation_steps=2), "earlier batches"),
        (lambda: WholeNorm(), "depends on other rows"),
        (lambda: ManySlots(), "keeps 5 slots"),
        (lambda: ColumnMeans(), r"of shape \(2,\)"),
        (lambda: tf.tpu.experimental.embedding.SGD(), "Use an optimizer of"),
        (lambda: object(), "Use an optimizer of"),
    ],
)
def test_optimizers_that_move_no_single_rows_are_refused(make, text):
    with pytest.raises(NotImplementedError, match=text):
        wrapped(make())


def test_rows_that_cannot_be_trained_are_refused():
    v = de.Variable(value_dtype=tf.int32)
    with pytest.raises(errors.DtypeError, match="rows of int32"):
        wrapped(PlainSgd()).apply_gradients([(slices([1], [[1.0]]), v)])


def test_a_table_with_an_admission_policy_needs_a_fused_rule():
    v = de.Variable(admission=policies.CountAdmission(2))
    step = [(slices([1], [[1.0]]), v)]
    with pytest.raises(NotImplementedError, match="admits keys by a policy"):
        wrapped(PlainSgd()).apply_gradients(step)
    decaying = wrapped(K.Adam(weight_decay=0.01))
    with pytest.raises(NotImplementedError, match="with weight_decay does not"):
        decaying.apply_gradients(step)
    assert int(v.size()) == 0
