"""Methods of tf.compat.v1 optimizers, with their arguments, over tables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.optimizer_makers import legacy
from dynamic_embedding.shadows import keys, shadow_ops
from tfembed import errors

V1 = tf.compat.v1.train


def variable(**options):
    return de.Variable(dim=1, name="rows", initializer=1.0, **options)


def loss_of(v, *ids):
    return lambda: tf.reduce_sum(de.embedding_lookup(v, keys(*ids), name="x"))


def sgd():
    return de.DynamicEmbeddingOptimizer(V1.GradientDescentOptimizer(1.0))


def row(v, key=1):
    return v.lookup(keys(key)).numpy().item()


def test_minimize_takes_the_global_step_first():
    v, steps = variable(), tf.Variable(0, dtype=tf.int64)
    optimizer = sgd()
    optimizer.minimize(loss_of(v, 1), steps, [v])
    optimizer.minimize(loss_of(v, 1), global_step=steps, var_list=[v])
    assert (row(v), int(steps)) == (-1, 2)


@pytest.mark.parametrize(
    "given",
    [
        lambda v: [v],
        lambda v: (v,),
        lambda v: lambda: [v],
        lambda v: {"x": v}.values(),
    ],
)
def test_minimize_takes_the_variables_in_that_place_too(given):
    v = variable()
    sgd().minimize(loss_of(v, 1), given(v))
    assert row(v) == 0


@pytest.mark.parametrize("in_function", [False, True])
def test_without_variables_all_that_the_loss_uses_are_trained(in_function):
    v, dense = variable(), tf.Variable(3.0)
    still = tf.Variable(2.0, trainable=False)
    shadow = shadow_ops.ShadowVariable(v)

    def loss():
        rows = shadow_ops.embedding_lookup(shadow, keys(2))
        return dense * (loss_of(v, 1)() + tf.reduce_sum(rows)) + still

    sgd().minimize(tf.function(loss) if in_function else loss)

    assert (row(v, 1), row(v, 2)) == (-2, -2)
    assert (float(dense), float(still)) == (1, 2)


def test_other_families_do_without_variables_too():
    v = variable()
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(1.0))
    optimizer.engine.minimize(loss_of(v, 1))
    assert row(v) == 0
    with pytest.raises(errors.ArgumentError, match="`var_list`"):
        optimizer.minimize(loss_of(v, 1), None)


def test_gradients_are_computed_changed_and_applied():
    v, dense = variable(), tf.Variable(3.0)
    steps = tf.Variable(0, dtype=tf.int64)
    optimizer = sgd()

    pairs = optimizer.compute_gradients(
        lambda: dense * loss_of(v, 1, 1)(), var_list=[v, dense]
    )
    (slices, _), (gradient, _) = pairs
    assert slices.values.numpy().tolist() == [[3], [3]]
    half = tf.IndexedSlices(slices.values * 0.5, slices.indices)
    halved = [(half, v), (gradient * 0.5, dense)]
    optimizer.apply_gradients(halved, steps)
    optimizer.apply_gradients(halved, global_step=steps, name="again")
    optimizer.apply_gradients(halved, "named")

    assert (row(v), float(dense), int(steps)) == (1 - 3 * 3, 0, 2)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: V1.GradientDescentOptimizer(0.1), []),
        (lambda: V1.AdamOptimizer(0.1), ["m", "v"]),
        (lambda: V1.FtrlOptimizer(0.1), ["accum", "linear"]),
        (lambda: V1.MomentumOptimizer(0.1, 0.9), ["momentum"]),
        (lambda: V1.RMSPropOptimizer(0.1, centered=True), None),
    ],
)
def test_slots_are_found_by_the_optimizers_names(make, names):
    v, dense = variable(), tf.Variable([1.0])
    optimizer = de.DynamicEmbeddingOptimizer(make())
    names = optimizer.get_slot_names() if names is None else names
    assert optimizer.get_slot_names() == names

    with tf.GradientTape() as tape:
        rows, wrapper = de.embedding_lookup(
            v, keys(1), name="x", return_trainable=True
        )
        loss = tf.reduce_sum(rows * dense)
    gradients = tape.gradient(loss, [wrapper, dense])
    assert [optimizer.get_slot(v, name) for name in names] == [None] * len(
        names
    )
    optimizer.apply_gradients([(gradients[0], wrapper), (gradients[1], dense)])

    for name in names:
        slot = optimizer.get_slot(wrapper, name).params
        assert slot.name.endswith(f"/{name}")
        assert int(slot.size()) == 1
        np.testing.assert_allclose(
            slot.lookup(keys(1))[0], optimizer.get_slot(dense, name), rtol=1e-4
        )
    assert optimizer.get_slot(v, "none") is None


def test_slots_of_tables_and_dense_variables_are_in_a_checkpoint(tmp_path):
    def setup():
        v, dense = variable(), tf.Variable([1.0])
        optimizer = de.DynamicEmbeddingOptimizer(V1.AdamOptimizer(0.1))
        optimizer.minimize(lambda: dense * loss_of(v, 1)(), None, [v, dense])
        checkpoint = tf.train.Checkpoint(v=v, dense=dense, optimizer=optimizer)
        slots = [optimizer.get_slot(x, "m") for x in (v, dense)]
        return checkpoint, slots[0].params, slots[1]

    saved, *_ = setup()
    path = saved.save(tmp_path / "c")
    restored, of_table, of_dense = setup()
    of_table.upsert(keys(1), [[7.0]])
    of_dense.assign([7.0])

    restored.restore(path).assert_consumed()

    np.testing.assert_allclose(of_table.lookup(keys(1)), [[0.1]], rtol=1e-5)
    np.testing.assert_allclose(of_dense, [0.1], rtol=1e-5)


def test_attributes_are_those_of_the_optimizer_that_was_given():
    v1 = de.DynamicEmbeddingOptimizer(V1.AdamOptimizer(0.1, name="mine"))
    keras = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(beta_1=0.8))
    assert v1.get_name() == "mine"
    assert v1.GATE_OP == V1.AdamOptimizer.GATE_OP
    assert keras.beta_1 == 0.8
    for optimizer in (v1, keras, keras.engine):
        with pytest.raises(AttributeError, match="TableOptimizer' object"):
            assert optimizer.no_such_attribute


def test_arguments_for_replicas_are_taken():
    v = variable()
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = loss_of(v, 1)()
    pairs = [(tape.gradient(loss, v), v)]
    optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
    assert row(v) == -1


@pytest.mark.parametrize(
    "make",
    [
        lambda: V1.AdamOptimizer(0.1),
        lambda: tf.keras.optimizers.Adam(0.1),
        lambda: legacy().Adam(0.1),
    ],
)
def test_an_optimizer_is_wrapped_once(make):
    optimizer = de.DynamicEmbeddingOptimizer(make())
    with pytest.raises(errors.ArgumentError, match="already"):
        de.DynamicEmbeddingOptimizer(optimizer)
