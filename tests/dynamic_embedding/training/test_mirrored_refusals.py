"""Calls that several replicas cannot do are refused, and change nothing."""

from __future__ import annotations

import pytest
import tensorflow as tf

from cpu_replicas import mirrored
from dynamic_embedding.mirrored_programs import (
    DIM,
    Program,
    keras_sgd,
)
from tfembed import errors


def test_a_step_outside_of_run_is_refused():
    program = Program(mirrored(2), keras_sgd)
    gradient = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64))

    with (
        program.strategy.scope(),
        pytest.raises(errors.StateError, match=r"inside of strategy\.run"),
    ):
        program.optimizer.apply_gradients([(gradient, program.table)])

    assert program.rows() == {}


def test_an_optimizer_of_no_strategy_is_refused_on_replicas():
    program = Program(tf.distribute.get_strategy(), keras_sgd)
    program.strategy = mirrored(2)

    with pytest.raises(errors.StateError, match=r"strategy\.scope"):
        program.run([[1], [2]])

    assert program.rows() == {}


@pytest.mark.parametrize(
    "options",
    [
        {"skip_gradients_aggregation": True},
        {"experimental_aggregate_gradients": False},
    ],
)
def test_gradients_that_were_summed_already_are_refused(options):
    program = Program(mirrored(2), keras_sgd)
    gradient = tf.IndexedSlices(tf.ones([1, DIM]), tf.constant([1], tf.int64))

    with pytest.raises(errors.UnsupportedError, match="sums the gradients"):
        program.strategy.run(
            lambda: program.optimizer.apply_gradients(
                [(gradient, program.table)], **options
            )
        )

    assert program.rows() == {}


def test_other_strategies_of_several_replicas_are_refused():
    strategy = tf.distribute.experimental.CentralStorageStrategy(
        ["/CPU:0", "/CPU:1"], "/CPU:0"
    )
    program = Program(strategy, keras_sgd)

    with pytest.raises(errors.UnsupportedError, match="MirroredStrategy"):
        program.run([[1], [2]])
