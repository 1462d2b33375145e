"""Replicas of a step beside one replica with the whole batch, and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

import tfembed
from tfembed import errors
from tfembed.estimator.replicas import replicate

v1 = tf.compat.v1
STEPS = 6


def _batches(seed=0, steps=STEPS, rows=16):
    draw = np.random.RandomState(seed)
    return [
        (
            draw.normal(size=(rows, 5)).astype(np.float32),
            draw.normal(size=(rows, 1)).astype(np.float32),
        )
        for _ in range(steps)
    ]


class Program:
    """A step in a graph of its own, fed by hand."""

    def __init__(self, step, replicas, rows=16, seed=3):
        self.graph = tf.Graph()
        with self.graph.as_default():
            v1.set_random_seed(seed)
            self.global_step = v1.get_variable(
                "global_step",
                [],
                tf.int64,
                v1.zeros_initializer(),
                trainable=False,
                use_resource=True,
                collections=["global_step", "variables"],
            )
            per = rows // replicas
            self.feeds = [
                (
                    v1.placeholder(tf.float32, [per, 5]),
                    v1.placeholder(tf.float32, [per, 1]),
                )
                for _ in range(replicas)
            ]
            self.replicas = replicate(step, self.feeds)
            self.init = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph)
        self.session.run(self.init)
        self.session.run(self.replicas.start_of_loop)

    def run(self, batch, fetch=None):
        features, labels = batch
        feed = {}
        for i, (x, y) in enumerate(self.feeds):
            per = x.shape[0]
            feed[x] = features[i * per : (i + 1) * per]
            feed[y] = labels[i * per : (i + 1) * per]
        return self.session.run(
            self.replicas.outputs if fetch is None else fetch, feed
        )

    def variables(self):
        with self.graph.as_default():
            return {v.name: self.session.run(v) for v in v1.global_variables()}


def _dense(x, width, name):
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[1], width])
        bias = v1.get_variable("bias", [width])
    return tf.matmul(x, kernel) + bias


def _train_step(x, y):
    hidden = tf.nn.relu(_dense(x, 8, "hidden"))
    loss = tf.reduce_mean(tf.square(_dense(hidden, 1, "out") - y))
    optimizer = v1.tpu.CrossShardOptimizer(v1.train.AdamOptimizer(0.05))
    train = optimizer.minimize(
        loss, global_step=v1.train.get_or_create_global_step()
    )
    return loss, train


@pytest.mark.parametrize("replicas", [2, 8])
def test_replicas_train_as_one_with_the_whole_batch(replicas):
    one = Program(_train_step, 1)
    many = Program(_train_step, replicas)

    for batch in _batches():
        (expected, _) = one.run(batch)[0]
        losses = [loss for loss, _ in many.run(batch)]
        np.testing.assert_allclose(np.mean(losses), expected, rtol=1e-5)

    expected = one.variables()
    found = many.variables()
    assert expected.keys() == found.keys()
    assert found["global_step:0"] == STEPS
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=1e-5, atol=1e-6, err_msg=name
        )


def test_two_runs_are_bitwise_equal():
    runs = []
    for _ in range(2):
        program = Program(_train_step, 8)
        runs.append([program.run(batch) for batch in _batches()])

    assert runs[0] == runs[1]


def test_one_replicas_output_runs_what_it_needs_of_all_replicas():
    whole, parts = Program(_train_step, 2), Program(_train_step, 2)

    for replica, batch in enumerate(_batches(steps=2)):
        whole.run(batch)
        parts.run(batch, parts.replicas.outputs[replica][1])

    expected, found = whole.variables(), parts.variables()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_an_optimizer_behind_a_sum_is_there_once():
    program = Program(_train_step, 8)

    kinds = [op.type for op in program.graph.get_operations()]
    assert kinds.count("ResourceApplyAdam") == 4
    assert kinds.count("VarHandleOp") == len(program.variables())


def test_a_variable_with_each_replicas_own_updates_is_copied_with_its_step():
    def step(x, y):
        loss = tf.reduce_mean(tf.square(_dense(x, 1, "out") - y))
        optimizer = v1.train.AdamOptimizer(0.05)  # Without a sum.
        return (
            loss,
            optimizer.minimize(loss, v1.train.get_or_create_global_step()),
        )

    program = Program(step, 2)
    one = Program(step, 1, rows=8)
    for features, labels in _batches():
        found = program.run((features, labels))
        expected = one.run((features[:8], labels[:8]))
        assert found[0][0] == expected[0][0]
        assert found[1][0] != expected[0][0]

    for name, value in one.variables().items():
        np.testing.assert_array_equal(
            program.variables()[name], value, err_msg=name
        )


def _normalized(x, y):
    mean = v1.get_variable(
        "moving_mean", [5], initializer=v1.zeros_initializer(), trainable=False
    )
    update = mean.assign_sub((mean - tf.reduce_mean(x, 0)) * 0.1)
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update.op)
    updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(updates):
        return tf.identity(tf.reduce_mean(y)), mean.read_value()


def test_batch_statistics_are_per_replica_and_replica_0s_are_kept():
    program = Program(_normalized, 4)
    expected = np.zeros((4, 5), np.float32)
    for features, labels in _batches():
        found = program.run((features, labels))
        parts = features.reshape(4, 4, 5).mean(1)
        expected += 0.1 * (parts - expected)
        np.testing.assert_allclose(
            [mean for _, mean in found], expected, rtol=1e-5, atol=1e-6
        )

    kept = program.variables()["moving_mean:0"]
    np.testing.assert_allclose(kept, expected[0], rtol=1e-5, atol=1e-6)
    program.session.run(program.replicas.start_of_loop)
    features, labels = _batches()[0]
    again = program.run((features, labels))
    parts = features.reshape(4, 4, 5).mean(1)
    np.testing.assert_allclose(
        [mean for _, mean in again],
        kept + 0.1 * (parts - kept),
        rtol=1e-5,
        atol=1e-6,
    )


def test_dropout_differs_between_replicas_and_not_between_runs():
    def step(x, y):
        return (tf.nn.dropout(tf.ones([64]), rate=0.5, seed=7),)

    masks = []
    for _ in range(2):
        program = Program(step, 4)
        masks.append(np.array(program.run(_batches()[0]))[:, 0])

    assert len({mask.tobytes() for mask in masks[0]}) == 4
    np.testing.assert_array_equal(masks[0], masks[1])


def test_the_first_replica_draws_what_one_replica_draws():
    def step(x, y):
        return (tf.nn.dropout(tf.ones([64]), rate=0.5),)

    masks = [np.array(Program(step, n).run(_batches()[0]))[0] for n in (1, 4)]

    np.testing.assert_array_equal(masks[0], masks[1])


def test_a_read_that_was_made_after_the_update_sees_the_step_before():
    def step(x, y):
        _, train = _train_step(x, y)
        return train, v1.train.get_global_step().read_value()

    program = Program(step, 2)
    seen = [
        [step for _, step in program.run(batch)] for batch in _batches(steps=20)
    ]

    assert seen == [[i, i] for i in range(20)]


def test_groups_sum_among_themselves():
    def step(x, y):
        return (
            v1.tpu.cross_replica_sum(
                tf.reduce_sum(x, 0), group_assignment=[[0, 2], [3, 1]]
            ),
        )

    program = Program(step, 4)
    features, labels = _batches()[0]
    found = np.array(program.run((features, labels)))[:, 0]

    sums = features.reshape(4, 4, 5).sum(1)
    np.testing.assert_allclose(found[0], sums[0] + sums[2], rtol=1e-5)
    np.testing.assert_array_equal(found[2], found[0])
    np.testing.assert_allclose(found[1], sums[1] + sums[3], rtol=1e-5)
    np.testing.assert_array_equal(found[3], found[1])


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_narrow_sums_are_rounded_once(dtype):
    def step(x, y):
        return (v1.tpu.cross_replica_sum(tf.cast(x[0], dtype)),)

    program = Program(step, 8)
    features, labels = _batches()[0]
    found = np.array(program.run((features, labels)))[0, 0]

    terms = tf.cast(features.reshape(8, 2, 5)[:, 0], dtype)
    expected = tf.cast(
        np.add.reduce(tf.cast(terms, tf.float32).numpy(), 0), dtype
    )
    np.testing.assert_array_equal(found, expected.numpy())


def _all_to_all(x):
    from tensorflow.python.tpu.ops import tpu_ops

    return tpu_ops.all_to_all(x, 1, 0, 4)


def _permute(x):
    from tensorflow.python.tpu.ops import tpu_ops

    return tpu_ops.collective_permute(x, [[0, 1], [1, 2], [3, 0]])


def test_all_to_all_exchanges_parts():
    program = Program(lambda x, y: (_all_to_all(x),), 4)
    features, labels = _batches()[0]
    found = np.array(program.run((features, labels)))[:, 0]

    parts = features.reshape(4, 4, 5)
    expected = [
        np.concatenate([parts[j, i : i + 1] for j in range(4)], 1)
        for i in range(4)
    ]
    np.testing.assert_array_equal(found, expected)


def test_a_permutation_gives_zeros_to_who_is_no_target():
    program = Program(lambda x, y: (_permute(x),), 4)
    features, labels = _batches()[0]
    found = np.array(program.run((features, labels)))[:, 0]

    parts = features.reshape(4, 4, 5)
    np.testing.assert_array_equal(
        found, [parts[3], parts[0], parts[1], np.zeros_like(parts[0])]
    )


@pytest.mark.parametrize("version", [1, 2])
def test_sums_in_a_loop_meet_iteration_by_iteration(version):
    def step(x, y):
        def body(i, total):
            term = tf.reduce_sum(x, 0) * tf.cast(i + 1, tf.float32)
            return i + 1, total + v1.tpu.cross_replica_sum(term)

        _, total = tf.while_loop(lambda i, _: i < 3, body, [0, tf.zeros([5])])
        return (total,)

    was = v1.control_flow_v2_enabled()
    (
        v1.enable_control_flow_v2
        if version == 2
        else v1.disable_control_flow_v2
    )()
    try:
        program = Program(step, 4)
    finally:
        (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()
    features, labels = _batches()[0]
    found = np.array(program.run((features, labels)))[:, 0]

    np.testing.assert_allclose(
        found, np.tile(features.sum(0) * 6, (4, 1)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("version", [1, 2])
def test_branches_and_random_ops_in_them_are_each_replicas_own(version):
    def step(x, y):
        replica = tf.reduce_sum(x) > 0
        return (
            tf.cond(
                replica,
                lambda: tf.random.uniform([3], seed=1),
                lambda: -tf.random.uniform([3], seed=1),
            ),
        )

    was = v1.control_flow_v2_enabled()
    (
        v1.enable_control_flow_v2
        if version == 2
        else v1.disable_control_flow_v2
    )()
    try:
        program = Program(step, 4)
    finally:
        (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()
    features = np.repeat([1, -1, 1, -1], 20).reshape(16, 5)
    found = np.array(program.run((features, np.zeros((16, 1)))))[:, 0]

    assert (np.sign(found) == [[1], [-1], [1], [-1]]).all()
    assert len(np.unique(np.abs(found))) == 12


def test_an_error_in_one_replica_ends_the_step_of_all():
    def step(x, y):
        checked = v1.debugging.assert_positive(tf.reduce_sum(x))
        with tf.control_dependencies([checked]):
            x = tf.identity(x)
        return (_permute(x),)

    program = Program(step, 4)
    features = np.ones((16, 5))
    features[12:] = -1

    with pytest.raises(tf.errors.InvalidArgumentError):
        program.run((features, np.zeros((16, 1))))
    features[12:] = 1
    program.run((features, np.zeros((16, 1))))


def test_variables_that_are_only_read_are_not_copied():
    def step(x, y):
        return (_dense(x, 2, "out"),)

    program = Program(step, 4)

    kinds = [op.type for op in program.graph.get_operations()]
    assert kinds.count("VarHandleOp") == 3


def test_a_value_read_outside_of_the_step_is_the_replicas_own():
    def step(x, y):
        with tf.init_scope():
            value = v1.get_variable("counted", [], use_resource=True).value()
        variable = v1.global_variables()[-1]
        doubled = variable.assign_add(tf.reduce_sum(x))
        with tf.control_dependencies([doubled]):
            return tf.identity(value * 2), variable.read_value()

    program = Program(step, 2)
    features, labels = _batches()[0]
    first = program.run((features, labels))
    second = program.run((features, labels))

    for replica in range(2):
        np.testing.assert_allclose(
            second[replica][0], 2 * first[replica][1], rtol=1e-5
        )


def test_inputs_with_a_tensor_for_each_replica_are_dealt_out():
    def step(x, y):
        return (numbers + tf.reduce_sum(x),)

    # TPUReplicatedInput has no kernel: what is not needed is not placed, then.
    config = v1.ConfigProto()
    config.graph_options.place_pruned_graph = True
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        numbers = tf.raw_ops.TPUReplicatedInput(
            inputs=[tf.constant(10.0 * i) for i in range(3)]
        )
        x = tf.ones([2])
        replicas = replicate(step, [[x, x]] * 3)
        found = session.run(replicas.outputs)
        with pytest.raises(errors.ArgumentError, match="the 2 replicas; got 3"):
            replicate(step, [[x, x]] * 2)

    assert found == [(2.0,), (12.0,), (22.0,)]


def test_a_replica_knows_its_number():
    program = Program(lambda x, y: xla.replica_id() * 2, 3, rows=6)

    assert program.run(_batches(rows=6)[0]) == [0, 2, 4]


def test_ops_for_a_tpus_cores_run_without_one():
    def step(x, y):
        with tf.device(v1.tpu.core(0)):
            return (_dense(x, 1, "out"),)

    assert np.shape(Program(step, 2).run(_batches()[0])) == (2, 1, 8, 1)


def test_helpers_of_tpu_programs_work_in_a_step():
    def step(x, y):
        with v1.tpu.bfloat16_scope():
            narrow = _dense(tf.cast(x, tf.bfloat16), 1, "out")
        doubled = v1.tpu.outside_compilation(lambda a: a * 2, y)
        return tf.cast(narrow, tf.float32), doubled

    program = Program(step, 2)
    features, labels = _batches()[0]
    found = program.run((features, labels))

    np.testing.assert_array_equal(
        np.concatenate([doubled for _, doubled in found]), labels * 2
    )
    assert program.variables()["out/kernel:0"].dtype == np.float32


def test_no_collective_is_noticed():
    assert Program(_train_step, 2).replicas.has_collectives
    assert not Program(_normalized, 2).replicas.has_collectives


def test_what_is_no_tensor_all_replicas_share():
    shared = object()
    program = Program(lambda x, y: {"x": x, "y": None, "z": shared}, 2)

    outputs = program.replicas.outputs
    assert [o["y"] for o in outputs] == [None, None]
    assert all(o["z"] is shared for o in outputs)
    assert outputs[0]["x"] is not outputs[1]["x"]


def test_sparse_tensors_are_returned_as_such():
    program = Program(lambda x, y: tf.sparse.from_dense(x), 2)
    features, labels = _batches()[0]

    found = program.run((features, labels))

    for i in range(2):
        np.testing.assert_array_equal(
            found[i].values, features[i * 8 : i * 8 + 8].ravel()
        )


def test_different_inputs_are_refused():
    with tf.Graph().as_default():
        a = v1.placeholder(tf.float32, [2])
        b = v1.placeholder(tf.float32, [3])
        with pytest.raises(errors.ArgumentError, match=r"float32\(3,\)"):
            replicate(lambda x: x, [[a], [b]])
        with pytest.raises(errors.ArgumentError, match="got none"):
            replicate(lambda x: x, [])


def test_a_reference_variable_is_refused_by_name():
    with tf.Graph().as_default():
        v1.disable_resource_variables()
        try:
            outside = v1.get_variable("outside", [], use_resource=False)
            with pytest.raises(NotImplementedError, match="Non-resource"):
                replicate(lambda x: outside.assign_add(x), [[tf.zeros([])]])
        finally:
            v1.enable_resource_variables()


def test_a_partitioner_is_refused_by_name():
    def step(x):
        return v1.get_variable(
            "parts", [4], partitioner=v1.fixed_size_partitioner(2)
        )

    with (
        tf.Graph().as_default(),
        pytest.raises(
            ValueError, match="Partitioned variables are not supported"
        ),
    ):
        replicate(step, [[tf.zeros([])]])


def test_a_table_inside_of_replicas_is_refused_and_the_way_out_named():
    def step(x):
        return tf.reduce_sum(table.lookup(tf.range(3, dtype=tf.int64))) + x

    with tf.Graph().as_default():
        table = tfembed.HashTable(4, name="inside")
        with pytest.raises(
            errors.UnsupportedError, match="embedding_config_spec"
        ):
            replicate(step, [[tf.zeros([])]])


def test_an_outfeed_is_refused_by_name():
    with (
        tf.Graph().as_default(),
        pytest.raises(errors.UnsupportedError, match="OutfeedEnqueueTuple"),
    ):
        replicate(
            lambda x: tf.raw_ops.OutfeedEnqueueTuple(inputs=[x], name="out"),
            [[tf.zeros([])]] * 2,
        )
