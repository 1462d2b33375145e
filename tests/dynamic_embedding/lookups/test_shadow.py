"""`ShadowVariable` and the lookups through it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.shadows import contents, keys, shadow_ops, shadowed
from tfembed import optimizers

SHARDS = pytest.mark.parametrize("shards", [1, 3])
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])


@pytest.fixture(autouse=True)
def train_mode():
    yield
    de.enable_train_mode()


def sgd():
    return de.DynamicEmbeddingOptimizer(optimizers.SGD(1.0))


def test_a_shadow_is_a_trainable_variable_of_its_module():
    module = tf.Module()
    module.dense = tf.Variable(1.0)
    v, module.shadow = shadowed(name="shadow")

    assert isinstance(module.shadow, (tf.Variable, de.TrainableWrapper))
    assert list(module.trainable_variables) == [module.dense, module.shadow]
    assert module.shadow.dtype == tf.float32
    assert module.shadow.ids.dtype == tf.int64
    assert v.get_trainable_by_name("shadow") is module.shadow
    assert v.get_eager_trainable_by_name("shadow") is module.shadow
    assert int(module.shadow.size()) == 0
    assert "shadow" in repr(module.shadow)


def test_a_handle_has_the_name_of_tensorflows_too():
    v, shadow = shadowed()
    _, wrapper = de.embedding_lookup(v, [1], name="x", return_trainable=True)
    layer = de.keras.layers.Embedding(1, name="handles")
    for source in (shadow, wrapper, layer.shadow):
        assert source._handle is source.handle
    with tf.Graph().as_default():
        _, wrapper = de.embedding_lookup(
            de.Variable(dim=1, name="graph"), [1], return_trainable=True
        )
        assert wrapper._handle is wrapper.handle


def test_any_function_may_look_distinct_ids_up():
    table = tf.constant([[0.0], [1.0], [2.0]])
    asked = []

    def look_up(ids):
        asked.append(ids.numpy().tolist())
        return tf.gather(table, ids)

    rows = shadow_ops.embedding_lookup_unique_base([[2, 1], [2, 2]], 1, look_up)
    assert rows.numpy().tolist() == [[[2], [1]], [[2], [2]]]
    assert asked == [[2, 1]]


@SHARDS
@IN_FUNCTION
def test_all_lookups_of_a_step_train_their_own_rows(shards, in_function):
    v, shadow = shadowed(shards)
    optimizer = sgd()

    def step(first, second):
        with tf.GradientTape() as tape:
            one = shadow_ops.embedding_lookup(shadow, first)
            two = shadow_ops.embedding_lookup(shadow, second)
            loss = tf.reduce_sum(one) + tf.reduce_sum(two)
        gradients = tape.gradient(loss, [shadow])
        optimizer.apply_gradients(zip(gradients, [shadow], strict=True))

    step = tf.function(step) if in_function else step
    step(keys(1, 2), tf.constant([[3, 4, 4]], tf.int64))

    assert contents(v) == {1: [-1, -1], 2: [-1, -1], 3: [-1, -1], 4: [-2, -2]}
    last = ([0], (0, 2)) if in_function else ([1, 3], (1, 3, 2))
    assert shadow.ids.shape.rank is None
    assert (
        list(shadow.ids.numpy().shape),
        shadow.read_value(False).shape,
    ) == last


def test_the_shape_of_the_ids_is_known_while_a_function_is_traced():
    _, shadow = shadowed()
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64)])
    def look_up(ids):
        rows = shadow_ops.embedding_lookup(shadow, ids)
        shapes.append(rows.shape.as_list())
        return rows

    look_up(tf.zeros([4, 3], tf.int64))
    assert shapes == [[None, 3, 2]]


def test_a_function_may_take_the_shadow_and_be_called_under_a_tape():
    v, shadow = shadowed()
    optimizer = sgd()

    @tf.function
    def loss(shadow, ids):
        return tf.reduce_sum(shadow_ops.embedding_lookup(shadow, ids))

    for n in range(3):
        optimizer.minimize(lambda n=n: loss(shadow, keys(n, 7)), [shadow])

    assert contents(v) == {
        0: [-1, -1],
        1: [-1, -1],
        2: [-1, -1],
        7: [-3, -3],
    }


def test_two_shadows_of_a_variable_have_gradients_of_their_own():
    v, first = shadowed()
    second = shadow_ops.ShadowVariable(v, name="second")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(shadow_ops.embedding_lookup(first, [1]))
        loss += tf.reduce_sum(shadow_ops.embedding_lookup(second, [2]))
    one, two, both = tape.gradient(loss, [first, second, v])
    assert one.indices.numpy().tolist() == [1]
    assert two.indices.numpy().tolist() == [2]
    assert sorted(both.indices.numpy()) == [1, 2]


def test_reading_the_value_again_is_a_lookup_too():
    _, shadow = shadowed()
    shadow._reset_ids(keys(5))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(3 * shadow.read_value())
        loss += tf.reduce_sum(shadow.read_value(do_prefetch=False))
    gradient = tape.gradient(loss, shadow)
    assert gradient.indices.numpy().tolist() == [5]
    assert gradient.values.numpy().tolist() == [[3, 3]]


@pytest.mark.parametrize("who", ["variable", "shadow"])
def test_what_is_not_trainable_has_no_gradient(who):
    v = de.Variable(dim=1, trainable=who != "variable")
    shadow = shadow_ops.ShadowVariable(v, trainable=who != "shadow")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(shadow_ops.embedding_lookup(shadow, [1]))
    assert tape.gradient(loss, shadow) is None
    assert not shadow.trainable


def test_the_value_may_be_changed_and_written_back():
    v, shadow = shadowed()
    rows = shadow_ops.embedding_lookup(shadow, [1, 2])
    shadow.assign(rows + 5.0)
    shadow.update_op()
    assert contents(v) == {1: [5, 5], 2: [5, 5]}


def test_a_bp_v2_variable_takes_the_difference():
    v = de.Variable(dim=1, bp_v2=True)
    v.upsert([1], [[10.0]])
    shadow = shadow_ops.ShadowVariable(v)
    rows = shadow_ops.embedding_lookup(shadow, [1, 2])
    shadow.assign(rows + 5.0)
    v.upsert([1], [[100.0]])  # Someone else came between.

    with pytest.raises(ValueError, match="needs `v0`"):
        shadow.update_op()
    shadow.update_op(v0=rows)

    assert contents(v) == {1: [105], 2: [5]}


def test_a_restrict_policy_is_told_of_what_is_written_back():
    v = de.Variable(dim=1, restrict_policy=de.FrequencyRestrictPolicy)
    shadow = shadow_ops.ShadowVariable(v)
    for ids in ([1, 2], [2, 3], [2, 3]):
        shadow_ops.embedding_lookup(shadow, ids)
        shadow.update_op()
    v.restrict(2, trigger=2)
    assert sorted(contents(v)) == [2, 3]


def test_long_rows_are_scaled_to_max_norm():
    v, shadow = shadowed(max_norm=1.0)
    v.upsert([1, 2], [[3.0, 4.0], [0.3, 0.4]])
    for mode in (de.enable_train_mode, de.enable_inference_mode):
        mode()
        rows = shadow_ops.embedding_lookup(shadow, [1, 2])
        np.testing.assert_allclose(rows, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)


def test_inference_mode_writes_no_buffer_and_has_no_gradient():
    v, shadow = shadowed()
    v.upsert([1], [[1.0, 1.0]])
    assert de.get_model_mode() == de.ModelMode.TRAIN
    de.enable_inference_mode()
    assert de.get_model_mode() == "inference"

    with tf.GradientTape() as tape:
        rows = shadow_ops.embedding_lookup(shadow, [1])
    assert tape.gradient(tf.reduce_sum(rows), shadow) is None
    assert rows.numpy().tolist() == [[1, 1]]
    assert shadow.ids.numpy().tolist() == []


def test_threads_may_look_up_through_one_shadow():
    v, shadow = shadowed(dim=1)
    v.upsert(range(100), np.arange(100, dtype=np.float32)[:, None])
    wrong = []

    def look_up(n):
        ids = np.arange(n, n + 10 + n % 3)
        for _ in range(50):
            rows = shadow_ops.embedding_lookup(shadow, ids).numpy()[:, 0]
            if rows.tolist() != ids.tolist():
                wrong.append(rows)

    threads = [threading.Thread(target=look_up, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sparse_lookups_take_a_shadow():
    v, shadow = shadowed()
    v.upsert([2, 5], np.ones([2, 2], np.float32))
    ids = tf.SparseTensor([[0, 2], [1, 5], [1, 6]], keys(2, 5, 5), [2, 7])
    with tf.GradientTape() as tape:
        out = de.safe_embedding_lookup_sparse(shadow, ids, combiner="sum")
        loss = tf.reduce_sum(out)
    assert out.numpy().tolist() == [[1, 1], [2, 2]]
    gradient = tape.gradient(loss, shadow)
    assert gradient.indices.numpy().tolist() == [2, 5]
    assert gradient.values.numpy().tolist() == [[1, 1], [2, 2]]


def test_slots_follow_the_ids_of_their_shadow():
    (_, shadow), (_, slot) = shadowed(), shadowed()
    shadow._track_optimizer_slots([slot, slot])
    shadow._reset_ids(keys(3))
    assert slot.ids.numpy().tolist() == [3]
    with pytest.raises(TypeError, match="must be TrainableWrappers"):
        shadow._track_optimizer_slots([tf.Variable(1.0)])
