"""A variable whose shards lie on several host devices."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding import seeded_variables
from tests.dynamic_embedding.graph_programs import graph_and_session
from tfembed import errors, optimizers, policies

KEYS = tf.range(6, dtype=tf.int64)


def variable(devices=("/CPU:0", "/CPU:1"), name="apart"):
    v = de.Variable(dim=2, name=name, devices=list(devices), initializer=1.0)
    v.upsert(KEYS, tf.reshape(tf.range(12, dtype=tf.float32), [6, 2]))
    return v


def content(v):
    keys, rows = (x.numpy() for x in v.export())
    return dict(zip(keys.tolist(), rows.tolist(), strict=True))


@pytest.mark.parametrize("in_function", [False, True])
def test_it_holds_and_gives_rows_as_on_one_device(in_function):
    apart, together = variable(), variable(["/CPU:0"] * 2)
    run = tf.function if in_function else lambda function: function

    rows = run(lambda: apart.lookup(KEYS))()

    assert {s.resource_handle.device[-1] for s in apart.tables} == {"0", "1"}
    np.testing.assert_array_equal(rows, together.lookup(KEYS))
    assert content(apart) == content(together)
    apart.remove(KEYS[:3])
    assert apart.size() == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizers.Adagrad(0.5),
        lambda: tf.keras.optimizers.Adam(0.5),
        lambda: tf.keras.optimizers.Lion(0.5),
    ],
    ids=["our own", "a fused one", "its own update"],
)
def test_it_is_trained_as_on_one_device(make):
    found = []
    for devices in (["/CPU:0", "/CPU:1"], ["/CPU:0"] * 2):
        v = variable(devices, name="trained")
        optimizer = de.DynamicEmbeddingOptimizer(make())
        for _ in range(2):
            optimizer.minimize(
                lambda v=v: tf.reduce_sum(
                    de.embedding_lookup(v, [1, 2, 2, 9], name="l") ** 2
                ),
                [v],
            )
        found.append(content(v))
    assert found[0].keys() == found[1].keys() == {*range(6), 9}
    for key, row in found[1].items():
        np.testing.assert_allclose(found[0][key], row, rtol=1e-6)


@pytest.mark.parametrize(
    "use",
    [
        lambda v, folder: v.save_to_file_system(folder),
        lambda v, folder: v.load_from_file_system(folder),
    ],
    ids=["save", "load"],
)
def test_raw_files_say_that_they_need_one_device(tmp_path, use):
    v = variable()
    with pytest.raises(errors.UnsupportedError, match="CPU:0, .*CPU:1"):
        use(v, str(tmp_path))
    assert v.size() == 6


@pytest.mark.parametrize(
    "devices",
    [["/CPU", "/CPU:0"], ["", "/CPU:0"], ["/job:localhost/task:0", "/CPU:0"]],
    ids=str,
)
def test_one_device_may_have_several_names_in_a_graph(tmp_path, devices):
    with graph_and_session() as session:
        v = de.Variable(dim=2, name="named", devices=devices)
        session.run(v.upsert(list(range(6)), tf.ones([6, 2])))
        session.run(v.save_to_file_system(str(tmp_path)))
        session.run(v.clear())
        session.run(v.load_from_file_system(str(tmp_path)))
        keys, _ = v.export()
        assert keys.op.type == "Tfembed>TableSnapshot"
        assert sorted(session.run(keys)) == list(range(6))


def test_a_graphs_checkpoint_takes_several_devices(tmp_path):
    with graph_and_session() as session, session.as_default():
        v = de.Variable(dim=2, name="apart", devices=["/CPU:0", "/CPU:1"])
        session.run(v.upsert(list(range(6)), tf.ones([6, 2])))
        checkpoint = tf.train.Checkpoint(v=v)
        path = checkpoint.save(str(tmp_path / "ckpt"))
        session.run(v.clear())
        checkpoint.restore(path).assert_consumed().run_restore_ops()
        assert session.run(v.size()) == 6


def _by_optimizer(v, loss, nonfinite):
    optimizer = de.DynamicEmbeddingOptimizer(
        optimizers.SGD(0.5), nonfinite=nonfinite
    )
    return lambda: optimizer.minimize(loss, [v])


def _by_hand(v, loss, nonfinite):
    v.table.attach(optimizers.SGD(0.5))

    def step():
        with tf.GradientTape() as tape:
            value = loss()
        slices = tape.gradient(value, v)
        v.table.apply_gradients(
            slices.indices, slices.values, nonfinite=nonfinite
        )

    return step


# A step that is refused changes no row, whatever device would refuse it: one op
# for each device sees its own rows alone. Looked at too: an optimizer's own
# update, writes by key, which check before all shards; a table whose rows a
# Python function draws, which were inserted while another table refused.
@pytest.mark.parametrize("step_of", [_by_optimizer, _by_hand])
@pytest.mark.parametrize("in_function", [False, True])
def test_a_gradient_that_one_device_refuses_changes_no_row(
    step_of, in_function
):
    v = variable(name=f"refused {step_of.__name__} {in_function}")
    before = content(v)
    scales = tf.constant([[1.0], [float("inf")], [1.0]])
    run = tf.function if in_function else lambda function: function

    def loss():
        rows = de.embedding_lookup(v, KEYS[:3], name="l")
        return tf.reduce_sum(rows * scales)

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="refuse.*nothing was changed"
    ):
        run(step_of(v, loss, "refuse"))()

    assert content(v) == before
    run(step_of(v, loss, "skip"))()
    assert content(v)[0] == [before[0][0] - 0.5, before[0][1] - 0.5]


@pytest.mark.parametrize("step_of", [_by_optimizer, _by_hand])
def test_a_batch_that_one_device_cannot_hold_changes_no_row(step_of):
    v = de.Variable(
        dim=1,
        name=f"bound {step_of.__name__}",
        devices=["/CPU:0", "/CPU:1"],
        initializer=1.0,
        max_size=4,
        eviction=policies.LeastRecent(),
    )
    ids = tf.constant([0, 1, 3, 5], tf.int64)
    step = step_of(
        v,
        lambda: tf.reduce_sum(de.embedding_lookup(v, ids, name="l")),
        "skip",
    )

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="nothing was chan"
    ):
        step()

    assert v.size() == 0


def test_no_row_is_drawn_by_a_step_that_another_table_refuses():
    drawn = seeded_variables.variable()
    plain = de.Variable(dim=drawn.dim, name="plain", initializer=1.0)
    optimizer = de.DynamicEmbeddingOptimizer(
        optimizers.SGD(0.5), nonfinite="refuse"
    )
    keys = tf.constant([5], tf.int64)
    pairs = [
        (tf.IndexedSlices(tf.fill([1, v.dim], number), keys), v)
        for v, number in ((drawn, 1.0), (plain, float("nan")))
    ]

    with pytest.raises(tf.errors.InvalidArgumentError, match="'plain'"):
        optimizer.apply_gradients(pairs)

    assert drawn.size() == plain.size() == 0
