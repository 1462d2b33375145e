"""The private TensorFlow symbols in use do what is expected of them."""

from __future__ import annotations

import ast
import gc
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import tfembed.ops
from tfembed.ops import FeaturePlan, private, step, table

OPS = pathlib.Path(tfembed.ops.__file__).parent


def test_handles_can_be_told_their_shape():
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2, 3])
    private.set_handle_shape(handle, tf.TensorShape([None, 3]))
    assert private.handle_shape(handle).as_list() == [None, 3]


def test_parameter_servers_are_those_of_the_innermost_setter():
    v1 = tf.compat.v1
    setters = [
        v1.train.replica_device_setter(
            cluster={"ps": ["a:1"] * tasks, "worker": ["b:1"]}
        )
        for tasks in (1, 2)
    ]
    seen = [private.parameter_servers()]
    with tf.Graph().as_default():
        seen.append(private.parameter_servers())
        with v1.device(setters[0]), v1.device("/CPU:0"):
            seen.append(private.parameter_servers())
            with v1.device(setters[1]):
                seen.append(private.parameter_servers())

    first, second = "/job:ps/task:0/device:CPU:0", "/job:ps/task:1/device:CPU:0"
    assert seen == [[], [], [first], [first, second]]


def test_what_waits_for_nothing_is_told():
    seen = [private.waits_for_nothing()]
    with tf.Graph().as_default():
        seen.append(private.waits_for_nothing())
        with tf.control_dependencies([tf.no_op()]):
            seen.append(private.waits_for_nothing())
        private.in_order(
            lambda: seen.append(private.waits_for_nothing()) or tf.zeros([])
        )
    assert seen == [False, True, False, False]


def test_handles_of_functions_keep_the_shape_of_what_was_captured():
    handle, variable = table.create(5), tf.Variable(tf.zeros([3, 2]))
    shapes = []

    @tf.function
    def run():
        captured = tf.raw_ops.VariableShape(input=variable.handle)
        inner = tf.compat.v1.get_default_graph().capture(handle)
        shapes.append(private.handle_shape(inner).as_list())
        return captured

    assert run().numpy().tolist() == [3, 2]
    assert shapes == [[0, 5]]


def test_a_graph_that_sessions_run_is_told_from_functions_and_branches():
    seen = {"eager": private.in_session_graph()}

    @tf.function
    def function():
        seen["function"] = private.in_session_graph()

    def branch():
        seen["branch"] = private.in_session_graph()
        return tf.constant(0)

    with tf.Graph().as_default():
        seen["graph"] = private.in_session_graph()
        tf.cond(tf.constant(True), branch, lambda: tf.constant(1))
        tf.compat.v1.disable_control_flow_v2()
        try:
            tf.cond(
                tf.compat.v1.placeholder(tf.bool, []),
                branch,
                lambda: tf.constant(1),
            )
        finally:
            tf.compat.v1.enable_control_flow_v2()
    function()
    assert seen == {
        "eager": False,
        "graph": True,
        "function": False,
        "branch": False,
    }


def test_a_graph_runs_in_order_what_it_is_told_to():
    with tf.Graph().as_default() as graph:
        variable = tf.Variable(1.0)

        def make():
            variable.assign(5.0)
            found = variable.read_value()
            variable.assign(7.0)
            assert private.orders_by_itself()
            return found

        found = private.in_order(make)
        assert not private.orders_by_itself()
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(variable.initializer)
            assert session.run(found) == 5.0
            assert session.run(variable) == 7.0


@pytest.mark.parametrize("old", [False, True])
def test_a_gradient_leaves_the_branch_that_its_tape_is_around(old):
    seen = {}

    def leaves(op):
        if old:
            return private.leaves_old_branch(op)
        return private.control_flow_left(op.graph) == "branch"

    def square(x):
        y = x * x
        seen["inside"] = leaves(y.op)
        seen["op"] = y.op
        return y

    if old:
        tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default():
            x = tf.compat.v1.placeholder(tf.float32, [])
            tf.cond(x > 1.0, lambda: square(x), lambda: x)
            assert leaves(seen["op"])
            assert not leaves(x.op)
    finally:
        tf.compat.v1.enable_control_flow_v2()
    assert not seen["inside"]


def test_a_handle_that_was_told_nothing_has_an_unknown_shape():
    assert private.handle_shape(tf.constant(1)).rank is None


def test_variables_and_what_acts_as_one_are_told_from_handles():
    variable = tf.Variable(1.0)
    assert private.acts_as_variable(variable)
    assert not private.acts_as_variable(variable.handle)


def test_a_tape_watches_a_variable_that_was_accessed():
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        private.variable_accessed(variable)
    assert tape.watched_variables()[0] is variable


def test_a_function_lists_a_stand_in_and_its_calls_tell_tapes_of_the_table():
    variable = tf.Variable(2.0)

    @tf.function
    def doubled():
        private.table_accessed(variable)
        return 2.0 * tf.raw_ops.ReadVariableOp(
            resource=variable.handle, dtype=tf.float32
        )

    outer = tf.function(lambda: doubled() + 1.0)
    (listed,) = outer.get_concrete_function().variables
    assert listed.handle is not variable.handle
    assert listed.anchor is variable
    assert listed.trainable
    assert listed.name == variable.name
    with tf.GradientTape() as tape:
        result = outer()
    assert tape.watched_variables()[0] is variable
    assert len(tape.watched_variables()) == 1
    assert tape.gradient(result, listed) == 2.0


def test_a_function_whose_table_is_gone_says_so():
    class Anchor:
        _should_act_as_resource_variable = True
        trainable = False

    owner = [Anchor()]
    function = tf.function(lambda: private.table_accessed(owner[0]))
    (listed,) = function.get_concrete_function().variables
    del function
    owner.clear()
    gc.collect()
    with pytest.raises(AssertionError, match="deleted"):
        _ = listed.trainable


def test_a_tape_watches_what_it_was_told_to_and_what_is_made_of_it():
    watched, other = tf.constant(1.0), tf.constant(1.0)
    assert not private.tape_watches(watched)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        assert private.tape_watches(2 * watched)
        assert not private.tape_watches(other)


def test_a_tape_records_while_it_is_open_and_not_paused():
    assert not private.tape_records()
    with tf.GradientTape() as tape:
        assert private.tape_records()
        with tape.stop_recording():
            assert not private.tape_records()


def test_lookups_in_a_function_do_not_wait_for_one_another():
    handle = table.create(2)

    @tf.function
    def run():
        return table.lookup(handle, [1], dim=2), table.lookup(
            handle, [2], dim=2
        )

    graph = run.get_concrete_function().graph
    lookups = [
        op for op in graph.get_operations() if op.type == "Tfembed>TableLookup"
    ]
    assert len(lookups) == 2
    assert not any(op.control_inputs for op in lookups)


def _look_up_in_queues(queues, variable, wrap):
    """Traces lookups of queues in one table, each made by `wrap(function)()`."""

    def look_up(queue):
        attrs = step.step_attrs(
            [1], ["dense"], [tf.int64], [1], [FeaturePlan(0, "sum")]
        )
        return step.lookup(queue, [variable.handle], attrs)

    @tf.function
    def run():
        for queue in queues:
            wrap(lambda queue=queue: look_up(queue))()

    return run.get_concrete_function().graph


def _new_queues(n):
    return [step.create("", most_batches=1, seconds=0) for _ in range(n)]


def test_lookups_of_two_queues_in_one_table_do_not_wait_for_one_another():
    first, second = _new_queues(2)
    graph = _look_up_in_queues(
        [first, second, first], tf.Variable([[1.0]]), lambda f: f
    )
    lookups = [
        op for op in graph.get_operations() if op.type == "Tfembed>StepLookup"
    ]
    assert [list(op.control_inputs) for op in lookups] == [[], [], lookups[:1]]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: tf.function(f),
        lambda f: (
            lambda: tf.cond(tf.constant(1) > 0, f, lambda: [tf.zeros([1, 1])])
        ),
    ],
    ids=["function", "cond"],
)
def test_nor_do_functions_and_branches_with_such_lookups(wrap):
    graph = _look_up_in_queues(_new_queues(2), tf.Variable([[1.0]]), wrap)
    calls = [
        op
        for op in graph.get_operations()
        if op.type in ("PartitionedCall", "StatefulPartitionedCall", "If")
    ]
    assert len(calls) == 2
    assert not any(calls[0] in op.control_inputs for op in calls)


def test_a_function_knows_whether_xla_compiles_it():
    found = []

    def traced():
        with tf.init_scope():
            found.append(private.traced_for_xla())
        found.append(private.traced_for_xla())

    for jit_compile in (None, False, True):
        tf.function(traced, jit_compile=jit_compile)()
    tf.function(tf.function(traced), jit_compile=True)()
    assert found == [False] * 4 + [False, True] * 2
    assert not private.traced_for_xla()


def test_no_other_module_of_the_room_imports_private_symbols():
    for path in OPS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = getattr(node, "module", None) or ""
            if path.stem != "private":
                assert not module.startswith("tensorflow.python"), path


def test_branches_of_a_graph_do_not_order_their_ops():
    found = {}

    def note(place):
        found[place] = private.orders_by_itself()
        return tf.constant(0)

    def branching(place):
        note(place)
        tf.cond(
            tf.constant(True),
            lambda: note(f"branch of {place}"),
            lambda: tf.constant(1),
        )

    note("eager")
    tf.function(lambda: branching("function"), autograph=False)()
    with tf.Graph().as_default():
        branching("graph")
        tf.function(lambda: note("function of graph"), autograph=False)()

    assert found == {
        "eager": True,
        "function": True,
        "branch of function": True,
        "graph": False,
        "branch of graph": False,
        "function of graph": True,
    }


def test_ops_of_a_loop_are_told_from_others():
    found = {}

    def note(place, x):
        found[place] = private.is_in_loop(tf.identity(x).op)
        return x + 1

    def body(x):
        note("loop", x)
        return tf.cond(
            x > 1, lambda: note("branch of loop", x), lambda: note("_", x)
        )

    @tf.function(autograph=False)
    def trace(x):
        tf.cond(x > 1, lambda: note("branch", x), lambda: note("_", x))
        return tf.while_loop(lambda x: x < 3, body, [note("function", x)])

    trace(tf.constant(0))
    del found["_"]
    assert found == {
        "loop": True,
        "branch of loop": True,
        "branch": False,
        "function": False,
    }


def test_what_waits_for_a_trace_is_called_once_the_outermost_is_made():
    called = []

    @tf.function
    def inner():
        assert private.when_traced(lambda: called.append("end"))
        called.append("inner")

    @tf.function
    def outer():
        inner()
        called.append("outer")

    outer()
    outer()

    assert called == ["inner", "outer", "end"]
    assert not private.when_traced(lambda: None)


def slope(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x).numpy()


def test_custom_gradients_go_with_the_functions_that_have_them():
    names = ops.gradient_registry.list()
    before = set(names)

    @tf.custom_gradient
    def bent(x):
        return 2.0 * x, lambda upstream: 3.0 * upstream

    def in_control_flow(x):
        x = tf.cond(x > 0.0, lambda: bent(x), lambda: x)
        (x,) = tf.while_loop(lambda x: x < 9.0, lambda x: [bent(x)], [x])
        return bent(x)

    functions = [tf.function(in_control_flow)]

    @tf.function
    def outer(x):
        y = bent(x)
        private.free_gradients_with_graph()
        return functions[0](y)

    functions.append(outer)
    del outer
    x = tf.constant(1.0)
    assert slope(functions[1], x) == 3.0**5
    assert set(names) - before
    del functions[1]
    gc.collect()
    # The inner function was traced in the outer one, and outlives it.
    assert slope(functions[0], x) == 3.0**5
    assert set(names) - before
    del functions[0]
    gc.collect()
    assert not set(names) - before


def test_custom_gradients_go_with_their_graph_of_tensorflow_1():
    names = ops.gradient_registry.list()
    before = set(names)
    x = tf.constant(2.0)
    expected = slope(tf.nn.silu, x)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.constant(2.0)
        bent = tf.nn.silu(given)
        private.free_gradients_with_graph()
        (found,) = session.run(tf.gradients(bent, given))
    del given, bent, session
    gc.collect()

    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert not set(names) - before


def test_a_function_s_gradient_has_checks_at_each_of_its_calls():
    left = []

    def check():
        left.append(private.differentiated_around())

    @tf.custom_gradient
    def noted(x):
        graph = tf.compat.v1.get_default_graph()

        def gradient(upstream):
            assert private.gradients_are_apart(graph)
            private.at_each_call(check)
            return 2.0 * upstream

        return 2.0 * x, gradient

    inner = tf.function(noted, autograph=False)
    outer = tf.function(lambda x: 3.0 * inner(x), autograph=False)

    @tf.function(autograph=False)
    def trace(x, wrapped):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = wrapped(x)
        return tape.gradient(y, x)

    def in_branch(x):
        return tf.cond(x > 0.0, lambda: outer(x), lambda: x)

    def in_loop(x):
        return tf.while_loop(lambda y: y < 4.0, lambda y: outer(y), [x])

    x = tf.constant(1.0)
    found = {}
    for wrapped in (outer, in_branch, in_loop):
        left.clear()
        assert trace(x, wrapped).numpy() == 6.0
        found[wrapped] = set(left)

    assert found == {outer: {""}, in_branch: {"branch"}, in_loop: {"loop"}}


def test_a_gradient_leaves_the_loop_or_branch_that_its_tape_is_around():
    found = []

    @tf.custom_gradient
    def noted(x):
        graph = tf.compat.v1.get_default_graph()

        def gradient(upstream):
            found.append(private.control_flow_left(graph))
            return upstream

        return 2.0 * x, gradient

    @tf.function(autograph=False)
    def trace(x, wrapped):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = wrapped(x)
        return tape.gradient(y, x)

    def in_loop(x):
        return tf.while_loop(lambda y: y < 4.0, lambda y: noted(y), [x])

    def alone(x):
        return noted(x)

    def in_branch(x):
        return tf.cond(x > 0.0, lambda: noted(x), lambda: x)

    for wrapped in (alone, in_branch, in_loop):
        trace(tf.constant(1.0), wrapped)
    assert list(dict.fromkeys(found)) == ["", "branch", "loop"]


def test_an_accumulator_is_known_by_what_it_follows():
    variable, other = tf.Variable(1.0), tf.Variable(1.0)
    assert not private.have_tangents([variable.handle])
    with tf.autodiff.ForwardAccumulator(variable, tf.constant(1.0)):
        assert private.have_tangents([variable.handle])
        assert not private.have_tangents([other.handle])
    with tf.GradientTape():
        assert not private.have_tangents([variable.handle])


def test_what_is_recomputed_or_vectorized_is_told():
    seen = []

    def note(x):
        seen.append((private.is_recomputed(), private.is_vectorized()))
        return 2.0 * x

    x = tf.constant([1.0])
    note(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.recompute_grad(note)(x)
    tape.gradient(y, x)
    tf.vectorized_map(note, x)
    assert seen[:3] == [(False, False), (True, False), (True, False)]
    assert set(seen[3:]) == {(False, True)}


def test_custom_gradients_dereference_variables_by_themselves():
    asked = []

    class Reference(private.Reference):
        def deref(self):
            asked.append(private.asked_by_custom_gradient())
            return super().deref()

    class Noted(tf.Module):
        trainable, _should_act_as_resource_variable = True, True
        variable = tf.Variable(1.0)
        handle = variable.handle

        def ref(self):
            return Reference(self.variable)

    noted = Noted()
    Reference(1).deref()

    @tf.custom_gradient
    def use(x):
        private.variable_accessed(noted)
        return x, lambda upstream, variables: (upstream, [None])

    use(tf.constant(1.0))
    assert asked[0] is False
    assert set(asked[1:]) == {True}


def test_types_can_be_dispatched_for():
    @private.register_dispatchable
    class Counted:
        pass

    @tf.experimental.dispatch_for_api(
        tf.compat.v1.zeros_like, {"tensor": Counted}
    )
    def zeros(tensor, dtype=None, name=None, optimize=True):
        return "zeros"

    assert tf.compat.v1.zeros_like(Counted()) == "zeros"
    assert tf.compat.v1.zeros_like(tf.constant(1.0)).numpy() == 0.0


def test_devices_of_processes_that_nothing_connects_to_are_told():
    there = "/job:worker/task:1/device:CPU:0"
    assert private.unreachable(there) == there
    assert private.unreachable("/task:1/device:CPU:0") is not None
    for here in ("/CPU:0", "/task:0/CPU:0", "/job:localhost/task:0/CPU:0"):
        assert private.unreachable(here) is None
