"""The private TensorFlow symbols do what the engine needs of them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model import registration

from proof.paper_tpu import traced_on_paper
from tfembed import ops
from tfembed.embedding import private


def test_a_single_variable_is_not_mirrored():
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        variable = private.single_variable(
            initial_value=lambda: tf.ones([2, 3]), name="one", trainable=True
        )
    assert isinstance(variable, tf.Variable)
    assert not isinstance(variable, tf.distribute.DistributedValues)
    assert (variable.name, variable.shape) == ("one:0", [2, 3])


def test_a_tracked_child_may_have_any_name():
    owner, child = tf.train.Checkpoint(), tf.Variable(1.0)
    assert private.track(owner, "a/b", child) is child
    assert owner._trackable_children() == {"a/b": child}


def test_a_tracked_child_is_found_again():
    owner = private.Folder()
    assert private.tracked(owner, "one") is None
    child = private.track(owner, "one", private.Folder())
    assert private.tracked(owner, "one") is child


def test_a_mark_against_tracking_comes_off():
    variable = tf.Variable(1.0)
    marked = tf.Module()._no_dependency(variable)
    assert marked is not variable
    assert private.without_mark(marked) is variable
    assert private.without_mark(variable) is variable


def test_a_creator_passes_what_a_single_variable_takes():
    seen = {}

    def creator(next_creator, **arguments):
        seen.update(arguments)
        return next_creator(**arguments)

    with tf.variable_creator_scope(creator):
        tf.Variable(1.0)
    assert set(private.SINGLE_VARIABLE_ARGUMENTS) <= set(seen)


def test_an_added_variable_is_tracked():
    owner = tf.train.Checkpoint()
    variable = private.add_variable(
        owner,
        name="rows",
        shape=[2],
        dtype=tf.float32,
        initializer=tf.zeros,
        getter=lambda initializer, shape, **arguments: private.single_variable(
            initial_value=initializer(shape), name=arguments["name"]
        ),
    )
    assert owner._trackable_children() == {"rows": variable}


def test_what_is_traced_inside_of_run_is_counted_and_known():
    found = {}

    def replica_step(ids):
        made = tf.abs(ids)
        found["inside"] = private.functions_since_run()
        found["made"] = private.is_made_inside_run(made.op)
        found["given"] = private.is_made_inside_run(ids.op)

        def branch():
            found["branch"] = private.functions_since_run()
            return made

        return tf.cond(tf.size(ids) > 0, branch, lambda: made)

    for strategy in (
        tf.distribute.get_strategy(),
        tf.distribute.OneDeviceStrategy("/CPU:0"),
        tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"]),
    ):
        found.clear()

        @tf.function
        def step(ids, strategy=strategy):
            found["outside"] = private.functions_since_run()
            strategy.run(replica_step, args=(ids + 1,))

        step(tf.constant([1]))
        assert found == {
            "outside": None,
            "inside": 0,
            "made": True,
            "given": False,
            "branch": 1,
        }


def test_an_unchecked_call_does_what_the_function_does():
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def body(x, n):
        variable.assign_add(x)
        return {"sum": variable + 1.0, "n": [n]}

    specs = tf.TensorSpec([2], tf.float32), tf.TensorSpec([None], tf.int64)
    call = private.unchecked_call(body.get_concrete_function(*specs))
    del body
    with tf.GradientTape() as tape:
        found = call(tf.constant([1.0, 1.0]), tf.constant([3], tf.int64))
    assert tape.watched_variables() == ()
    np.testing.assert_array_equal(found["sum"], [3.0, 4.0])
    np.testing.assert_array_equal(found["n"][0], [3])
    np.testing.assert_array_equal(variable, [2.0, 3.0])


def test_an_unchecked_call_raises_what_the_function_raises():
    @tf.function
    def body(x):
        tf.debugging.assert_positive(x, message="not positive")

    spec = tf.TensorSpec([], tf.float32)
    call = private.unchecked_call(body.get_concrete_function(spec))
    assert call(tf.constant(1.0)) is None
    with pytest.raises(tf.errors.InvalidArgumentError, match="not positive"):
        call(tf.constant(-1.0))


def _split(*outputs):
    """A function of one op, whose outputs it returns in this order."""

    @tf.function
    def body(sizes, values):
        parts = ops.split_aligned(values, sizes, 2)
        return {"a": [tf.identity(parts[i]) for i in outputs], "b": None}

    specs = (
        tf.TensorSpec([2], tf.int64, "sizes"),
        tf.TensorSpec([None], tf.int64, "values"),
    )
    return private.unchecked_call(body.get_concrete_function(*specs))


@pytest.mark.parametrize("outputs", [(0, 1), (1, 0), (1,), (1, 1), ()])
def test_an_unchecked_call_of_one_op_is_that_op(outputs):
    call = _split(*outputs)
    values = tf.range(16, dtype=tf.int64)
    with tf.GradientTape() as tape:
        tape.watch(values)
        found = call(tf.constant([3, 2], tf.int64), values)
    expected = [[0, 1, 2], [8, 9]]
    assert set(found) == {"a", "b"} and found["b"] is None
    assert [one.numpy().tolist() for one in found["a"]] == [
        expected[i] for i in outputs
    ]
    with pytest.raises(tf.errors.InvalidArgumentError, match="size -1") as bad:
        call(tf.constant([-1, 2], tf.int64), values)
    # Not a function's error.
    assert "__inference" not in str(bad.value)


def test_an_unchecked_call_of_more_than_an_op_is_the_function():
    @tf.function
    def body(sizes, values):
        return ops.split_aligned(values, sizes * 2, 2)

    specs = tf.TensorSpec([2], tf.int64), tf.TensorSpec([None], tf.int64)
    call = private.unchecked_call(body.get_concrete_function(*specs))
    found = call(tf.constant([1, 2], tf.int64), tf.range(16, dtype=tf.int64))
    assert [one.numpy().tolist() for one in found] == [[0, 1], [8, 9, 10, 11]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="__inference"):
        call(tf.constant([-1, 2], tf.int64), tf.range(16, dtype=tf.int64))


def test_a_table_of_tensorflows_describes_itself():
    def rate():
        return 0.1

    theirs = tf.tpu.experimental.embedding
    table = theirs.TableConfig(2, 4, optimizer=theirs.SGD(rate), name="one")
    proto = private.new_config_proto()
    private.describe_table(table, proto.table_descriptor.add(), 3, {rate: 7})
    (descriptor,) = proto.table_descriptor
    # A table is never smaller than the number of hosts.
    assert (descriptor.name, descriptor.vocabulary_size) == ("one", 3)
    assert descriptor.dimension == 4
    assert descriptor.optimization_parameters.learning_rate.dynamic.tag == 7


def test_hosts_are_those_of_the_tpus_or_one():
    mirrored = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    assert private.num_hosts(mirrored) == 1
    assert private.cores_per_replica(mirrored) is None
    with traced_on_paper(4) as (_, strategy):
        assert private.num_hosts(strategy) == 4
        assert private.cores_per_replica(strategy) is None
    with traced_on_paper(1, 4, cores_per_replica=2) as (_, strategy):
        assert private.cores_per_replica(strategy) == 2
        devices = private.tpu_devices(strategy)
    assert [[name[-5:] for name in cores] for cores in devices] == [
        ["TPU:0", "TPU:1"],
        ["TPU:2", "TPU:3"],
    ]


def test_checkpoints_note_tensorflows_callback_of_a_kind():
    class Kind(tf.Module):
        pass

    name = registration.get_registered_saver_name
    assert name(Kind()) is None
    private.note_callback_of(Kind)
    assert name(Kind()) == "tf.TPUEmbeddingCallback"
    assert name(tf.Module()) is None
