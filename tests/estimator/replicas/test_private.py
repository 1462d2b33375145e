"""The private TensorFlow symbols that simulated replicas use."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_function

from tfembed.estimator.private import control_flow, tpu_programs

v1 = tf.compat.v1


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_an_ops_edges_attributes_and_device_can_be_changed(graph):
    with tf.device("/device:TPU_REPLICATED_CORE:0"):
        a, b = tf.zeros([]), tf.ones([])
    c = tf.identity(a)
    last = tf.group(c)

    control_flow.add_control_inputs(c.op, [b.op])
    control_flow.replace_input(c.op, 0, b)
    control_flow.set_attributes(c.op, {"_n": 3, "_s": b"x"})
    control_flow.forget_tpu_devices([a.op])

    assert list(c.op.control_inputs) == [b.op]
    assert c.op.inputs[0] is b
    assert (c.op.get_attr("_n"), c.op.get_attr("_s")) == (3, b"x")
    assert (a.op.device, bool(b.op.device)) == ("", True)
    assert list(control_flow.control_outputs(c.op)) == [last]


def test_another_op_takes_an_ops_place(graph):
    a, b = tf.zeros([]), tf.ones([])
    user = tf.add(a, a)
    other = tf.constant(3.0)
    behind = tf.group(a, other)

    control_flow.use_instead(a.op, b.op)

    assert list(user.op.inputs) == [b, b]
    assert set(behind.control_inputs) == {b.op, other.op}


def test_ops_outside_of_contexts_have_no_scope_edge_or_device(graph):
    with (
        tf.name_scope("scope"),
        tf.device("/cpu:0"),
        tf.control_dependencies([tf.no_op()]),
        control_flow.outside_of_contexts(graph),
    ):
        op = tf.no_op(name="alone")

    assert (op.name, op.device, list(op.control_inputs)) == ("alone", "", [])
    assert control_flow.contexts_around(op) == []


def test_loops_and_branches_are_frames(graph):
    v1.disable_control_flow_v2()
    try:
        ops = []

        def body(i):
            ops.append(tf.constant(1).op)
            return i + 1

        tf.while_loop(lambda i: i < 3, body, [0])
    finally:
        v1.enable_control_flow_v2()

    (loop,) = control_flow.frames_around(ops[0])
    assert loop.IsWhileContext()
    assert control_flow.contexts_around(ops[0]) == [loop]


def test_references_are_known(graph):
    v1.disable_resource_variables()
    try:
        variable = v1.get_variable("v", [], use_resource=False)
    finally:
        v1.enable_resource_variables()

    assert control_flow.is_ref(variable.op.outputs[0])
    assert not control_flow.is_ref(tf.zeros([]))


def test_ops_are_described():
    assert control_flow.op_def("CrossReplicaSum").is_stateful
    assert control_flow.op_def("no_such_op") is None


def test_the_number_of_replicas_is_known_inside(graph):
    with tpu_programs.shard_context(5):
        assert tpu_function.get_tpu_context().number_of_shards == 5


def test_variables_are_resources_inside_and_outer_getters_are_asked(graph):
    asked = []

    def getter(getter, name, *args, **kwargs):
        asked.append(name)
        return getter(name, *args, **kwargs)

    with (
        v1.variable_scope("", use_resource=False, custom_getter=getter),
        control_flow.resource_variables(),
    ):
        variable = v1.get_variable("v", [])

    assert variable.handle.dtype == tf.resource
    assert asked == ["v"]


def test_a_replica_number_is_an_op_of_its_own():
    with tf.Graph().as_default():
        found = tpu_programs.replica_id()

    assert found.op.type == "XlaReplicaId"
    assert found.dtype == tf.int32
