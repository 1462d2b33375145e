"""Reads of variables come before writes that they do not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed.estimator.replicas import (
    order_input_before_writes,
    order_reads_before_writes,
)

v1 = tf.compat.v1
TIMES = 30


def _run(outputs, times=TIMES, init=None):
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return [session.run(outputs) for _ in range(times)]


def _variable(use_resource=True, shape=()):
    return v1.get_variable(
        "v",
        shape,
        tf.int64,
        v1.zeros_initializer(),
        use_resource=use_resource,
        trainable=False,
    )


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_read_sees_the_value_before_the_step(use_resource):
    with tf.Graph().as_default():
        variable = _variable(use_resource)
        write = v1.assign_add(variable, 1)
        reads = [tf.reshape(variable, [1]) * 1 for _ in range(5)]

        assert order_reads_before_writes([write, *reads]) > 0
        found = _run([write, *reads])

    assert [row[1:] for row in found] == [[i] * 5 for i in range(TIMES)]


def test_a_second_call_adds_nothing():
    with tf.Graph().as_default():
        variable = _variable()
        ends = [variable.assign_add(1).op, variable.read_value()]

        assert order_reads_before_writes(ends) == 1
        assert order_reads_before_writes(ends) == 0


def test_a_read_that_depends_on_the_write_stays_behind_it():
    with tf.Graph().as_default():
        variable = _variable()
        write = variable.assign_add(1).op
        with tf.control_dependencies([write]):
            after = variable.read_value()
        before = variable.read_value()

        order_reads_before_writes([after, before])
        found = _run([before, after])

    assert found == [[i, i + 1] for i in range(TIMES)]


def test_ops_that_are_not_needed_are_left_alone():
    with tf.Graph().as_default():
        variable = _variable()
        write = variable.assign_add(1).op
        variable.read_value()

        assert order_reads_before_writes([write]) == 0


def test_reads_and_writes_that_wait_for_each_other_close_no_circle():
    with tf.Graph().as_default():
        a = v1.get_variable("a", [], use_resource=True)
        b = v1.get_variable("b", [], use_resource=True)
        write_a, write_b = a.assign_add(1.0).op, b.assign_add(1.0).op
        with tf.control_dependencies([write_b]):
            read_a = a.read_value()
        with tf.control_dependencies([write_a]):
            read_b = b.read_value()

        assert order_reads_before_writes([read_a, read_b]) == 1
        _run([read_a, read_b], times=3)


@pytest.fixture
def frames():
    was = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if was:
        v1.enable_control_flow_v2()


def test_a_write_in_a_loop_waits_for_reads_around_it(frames):
    with tf.Graph().as_default():
        variable = _variable()

        def body(i):
            with tf.control_dependencies([variable.assign_add(1)]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 3, body, [0])[0]
        read = variable.read_value()

        assert order_reads_before_writes([loop, read]) > 0
        found = _run([read, loop])

    assert [value for value, _ in found] == [3 * i for i in range(TIMES)]


def test_a_write_waits_for_reads_in_a_loop(frames):
    with tf.Graph().as_default():
        variable = _variable()
        _, total = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, total: (i + 1, total + variable.read_value()),
            [0, tf.zeros([], tf.int64)],
        )
        write = variable.assign_add(1).op

        assert order_reads_before_writes([total, write]) > 0
        found = _run([total, write])

    assert [value for value, _ in found] == [3 * i for i in range(TIMES)]


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_that_is_not_taken_stops_no_write(frames, taken):
    with tf.Graph().as_default():
        variable = _variable()
        read = tf.cond(
            tf.constant(taken),
            lambda: variable.read_value(),
            lambda: tf.constant(-1, tf.int64),
        )
        write = variable.assign_add(1).op

        order_reads_before_writes([read, write])
        found = _run([read, write])

    expected = list(range(TIMES)) if taken else [-1] * TIMES
    assert [value for value, _ in found] == expected


def test_a_model_of_many_variables_is_ordered_at_once():
    with tf.Graph().as_default():
        x = tf.ones([2, 4])
        for i in range(60):
            kernel = v1.get_variable(f"k{i}", [4, 4], use_resource=True)
            x = tf.nn.relu(tf.matmul(x, kernel))
        step = v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer().minimize(tf.reduce_mean(x), step)
        read = step.read_value()

        order_reads_before_writes([train, read])
        found = _run([read, train])

    np.testing.assert_array_equal([s for s, _ in found], range(TIMES))


def test_a_read_behind_a_loop_stays_behind_the_writes_in_the_loop(frames):
    with tf.Graph().as_default():
        variable = _variable()

        def body(i):
            with tf.control_dependencies([variable.assign_add(1)]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 3, body, [0])[0]
        with tf.control_dependencies([loop]):
            after = variable.read_value()
        before = variable.read_value()

        order_reads_before_writes([before, after])
        found = _run([before, after])

    assert found == [[3 * i, 3 * i + 3] for i in range(TIMES)]


@pytest.mark.parametrize("use_resource", [True, False])
def test_a_step_whose_input_has_ended_writes_nothing(use_resource, frames):
    with tf.Graph().as_default(), v1.Session() as session:
        iterator = v1.data.make_one_shot_iterator(tf.data.Dataset.range(2))
        variable = _variable(use_resource)
        in_a_loop = v1.get_variable(
            "in_a_loop",
            [],
            initializer=v1.zeros_initializer(),
            use_resource=True,
        )

        def body(i):
            with tf.control_dependencies([in_a_loop.assign_add(1.0)]):
                return i + 1

        loop = v1.while_loop(lambda i: i < 3, body, [0])
        step = tf.group(v1.assign_add(variable, 1), loop, iterator.get_next())
        order_input_before_writes([step])
        order_input_before_writes([step])
        session.run(v1.global_variables_initializer())
        for _ in range(2):
            session.run(step)
        for _ in range(TIMES):
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(step)

        assert session.run(variable) == 2


def test_a_step_that_ends_with_a_signal_writes_before_it():
    with tf.Graph().as_default(), v1.Session() as session:
        signal = tf.queue.FIFOQueue(1, [tf.bool], [[]])
        variable = _variable(True)
        write = v1.assign_add(variable, 1)
        with tf.control_dependencies([write]):
            sent = signal.enqueue(True)
        step = tf.group(write, signal.dequeue().op)
        order_input_before_writes([step])
        session.run(v1.global_variables_initializer())
        session.run(sent)  # What signals needs the write.
        session.run(step)

        assert session.run(variable) == 2
