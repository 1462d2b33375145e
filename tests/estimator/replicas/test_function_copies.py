"""Functions that a step calls: each replica has its own where that matters."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed.estimator.replicas import replicate

v1 = tf.compat.v1
REPLICAS = 3


@tf.function(autograph=False)
def _summed(x):
    return v1.tpu.cross_replica_sum(x)


@tf.function(autograph=False)
def _summed_twice(x):
    return _summed(x) + _summed(x * 10)


@tf.function(autograph=False)
def _drawn(n):
    return tf.random.uniform([4], seed=3) + n


@tf.function(autograph=False)
def _plain(x):
    return x * 2


def _run(step, times=1):
    """What each replica returns, whose input is its number plus 1."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        inputs = [[tf.constant(float(i + 1))] for i in range(REPLICAS)]
        replicas = replicate(step, inputs)
        session.run(v1.global_variables_initializer())
        session.run(replicas.start_of_loop)
        found = [session.run(replicas.outputs) for _ in range(times)]
    return graph, found[0] if times == 1 else found


def test_a_function_that_sums_is_called_twice_in_a_step():
    _, found = _run(lambda x: (_summed(x), _summed(x * 10), _summed_twice(x)))

    assert found == [(6.0, 60.0, 66.0)] * REPLICAS


def test_a_sum_in_a_function_of_a_loop_meets_in_every_iteration():
    def step(x):
        return tf.while_loop(
            lambda i, _: i < 4,
            lambda i, total: (i + 1, total + _summed(x)),
            [0, 0.0],
        )[1]

    _, found = _run(step, times=3)

    assert found == [[24.0] * REPLICAS] * 3


def test_one_output_of_a_step_with_a_sum_in_a_function_does_not_hang():
    with tf.Graph().as_default(), v1.Session() as session:
        replicas = replicate(
            lambda x: (_summed(x), x), [[tf.constant(1.0)]] * REPLICAS
        )

        assert session.run(replicas.outputs[2][1]) == 1.0
        assert session.run(replicas.outputs[1][0]) == REPLICAS
    assert replicas.has_collectives


def test_random_numbers_of_a_function_differ_between_replicas():
    _, found = _run(lambda x: _drawn(0.0))

    assert len({draw.tobytes() for draw in found}) == REPLICAS


def test_a_branch_that_sums_sums_where_all_take_it():
    def step(x):
        return tf.cond(x > 0, lambda: _summed(x), lambda: x)

    _, found = _run(step)

    assert found == [6.0] * REPLICAS


def test_a_function_that_is_the_same_everywhere_is_not_copied():
    graph, found = _run(_plain)
    names = [f.signature.name for f in graph.as_graph_def().library.function]

    assert found == [2.0, 4.0, 6.0]
    assert len([name for name in names if "plain" in name]) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_variable_that_a_loop_assigns_is_each_replicas_own(version):
    def step(x):
        variable = v1.get_variable("v", [], initializer=v1.zeros_initializer())

        def body(i):
            with tf.control_dependencies([variable.assign_add(x)]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 3, body, [0])[0]
        with tf.control_dependencies([loop]):
            return variable.read_value()

    was = v1.control_flow_v2_enabled()
    (
        v1.enable_control_flow_v2
        if version == 2
        else v1.disable_control_flow_v2
    )()
    try:
        _, found = _run(step, times=2)
    finally:
        (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()

    np.testing.assert_array_equal(found, [[3, 6, 9], [6, 12, 18]])
