"""Lookups found by name, as TFRA's programs give them to an optimizer."""

from __future__ import annotations

import collections
import itertools
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.shadows import keys, shadow_ops

OPTIMIZERS = {
    "Keras, fused": lambda: tf.keras.optimizers.Adagrad(0.1),
    "Keras, its own update": lambda: tf.keras.optimizers.RMSprop(0.1),
    "v1, fused": lambda: tf.compat.v1.train.AdamOptimizer(0.1),
    "v1, its own update": lambda: tf.compat.v1.train.MomentumOptimizer(
        0.1, 0.9
    ),
}


def sgd(rate=1.0):
    return de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(rate))


def rows_of(v, *ids):
    return v.lookup(keys(*ids)).numpy()[:, 0].tolist()


def test_the_documented_example_trains_by_a_name():
    params = de.Variable(dim=2, name="by_name", initializer=1.0)
    optimizer = sgd(0.25)

    @tf.function
    def loss_fn(ids):
        emb = de.embedding_lookup(params, ids, name="user_embedding")
        return tf.reduce_mean(tf.reduce_sum(emb, axis=1))

    ids = keys(1, 2)
    loss_fn(ids)
    for _ in range(2):
        optimizer.minimize(
            lambda: loss_fn(ids),
            var_list=[params.get_eager_trainable_by_name("user_embedding")],
        )
    assert rows_of(params, 1, 2) == [0.75, 0.75]
    assert params.get_trainable_by_name("user_embedding") is params


@pytest.mark.parametrize("in_function", [False, True])
def test_the_store_of_trainables_trains_all_lookups(in_function):
    v = de.Variable(dim=1, name="stored")

    def loss():
        one = de.embedding_lookup(v, keys(1, 2), name="one")
        two = de.embedding_lookup(v, keys(2, 3), name="two")
        return tf.reduce_sum(one) + tf.reduce_sum(two)

    sgd().minimize(
        tf.function(loss) if in_function else loss,
        lambda: list(v.trainable_store.values()),
    )
    assert rows_of(v, 1, 2, 3) == [-1, -2, -1]


def test_a_variable_without_lookups_has_nothing_to_train():
    v = de.Variable(name="unused")
    v.lookup(keys(1))
    assert v.trainable_store == {}
    assert v.get_trainable_by_name("embedding_lookup") is None


def test_names_that_are_made_up_for_each_lookup_are_forgotten():
    v = de.Variable(name="many")
    for i in range(1100):
        v.note_lookup(f"step_{i}")
    assert v.get_trainable_by_name("step_0") is None
    assert v.get_trainable_by_name("step_1099") is v
    assert list(v.trainable_store.values()) == [v]


def test_a_wrapper_that_is_kept_trains_in_every_step():
    v = de.Variable(dim=1, name="kept")
    optimizer, trainables = sgd(), []

    def loss(ids):
        rows, wrapper = de.embedding_lookup(
            v, ids, name="rows", return_trainable=True
        )
        if not trainables:
            trainables.append(wrapper)
        return tf.reduce_sum(rows)

    for last in (2, 3):
        optimizer.minimize(lambda last=last: loss(keys(1, last)), trainables)

    assert rows_of(v, 1, 2, 3) == [-2, -1, -1]
    assert trainables[0].ids.numpy().tolist() == [1, 3]


CLIPPINGS = {
    "as they are": lambda gradients: gradients,
    "clipped one by one": lambda gradients: [
        tf.clip_by_norm(one, 100.0) for one in gradients
    ],
}


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("given", [1, 2])
def test_two_lookups_of_one_name_in_a_step_are_both_counted(given, clipping):
    v = de.Variable(dim=1, name="twice")
    with tf.GradientTape() as tape:
        both = [
            de.embedding_lookup(v, ids, name="rows", return_trainable=True)
            for ids in (keys(1, 2), keys(2))
        ]
        loss = tf.reduce_sum(both[0][0]) + 10 * tf.reduce_sum(both[1][0])
    wrapper = both[0][1]
    assert both[1][1] is wrapper

    sources = [wrapper for _, wrapper in both][:given]
    gradients = CLIPPINGS[clipping](tape.gradient(loss, sources))
    sgd().apply_gradients(zip(gradients, sources, strict=True))

    assert rows_of(v, 1, 2) == [-1, -11]


def test_the_gradients_of_two_losses_of_one_lookup_both_count():
    v = de.Variable(dim=1, name="losses")
    with tf.GradientTape(persistent=True) as tape:
        rows, wrapper = de.embedding_lookup(
            v, keys(1, 2), name="rows", return_trainable=True
        )
        losses = [tf.reduce_sum(rows), tf.reduce_sum(rows)]
    sgd().apply_gradients(
        [(tape.gradient(loss, wrapper), wrapper) for loss in losses]
    )
    assert rows_of(v, 1, 2) == [-2, -2]


class Lookup:
    """As much of a wrapper as a variable needs to remember it."""

    def __init__(self, name):
        self.name = name

    def note_step(self):
        pass


def test_a_step_is_noted_while_other_threads_look_up():
    v = de.Variable(dim=1, name="hogwild")
    is_over = threading.Event()

    def look_up():
        living = collections.deque(maxlen=200)
        for i in itertools.count():
            if is_over.is_set():
                return
            living.append(Lookup(f"{i}"))
            v.remember_trainable(living[-1])

    thread = threading.Thread(target=look_up)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(1000):
            v.note_step()
            assert None not in v.trainable_store.values()
    finally:
        is_over.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_each_lookup_of_a_name_has_its_own_max_norm():
    v = de.Variable(dim=1, name="scaled", initializer=8.0)
    kept = []
    for max_norm, row in ((None, 8), (2.0, 2), (4.0, 4)):
        rows, wrapper = de.embedding_lookup(
            v, keys(1), name="rows", max_norm=max_norm, return_trainable=True
        )
        kept.append(wrapper)
        assert rows.numpy().item() == row
        assert wrapper.read_value(do_prefetch=False).numpy().item() == row
    assert kept[0] is kept[2]
    with pytest.raises(ValueError, match="`max_norm`"):
        de.embedding_lookup(
            v, keys(1), name="rows", max_norm=-1, return_trainable=True
        )


def test_a_lookup_under_the_name_of_a_shadow_leaves_it_alone():
    v = de.Variable(dim=1, name="shadowed")
    shadow = shadow_ops.ShadowVariable(v, name="mine")
    _, wrapper = de.embedding_lookup(
        v, keys(1), name="mine", return_trainable=True
    )
    assert wrapper is not shadow
    assert shadow.ids.numpy().tolist() == []


@pytest.mark.parametrize("bp_v2", [False, True])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_values_are_what_a_step_made_of_the_rows(make, bp_v2):
    v = de.Variable(dim=2, name="stepped", initializer=0.1, bp_v2=bp_v2)
    shadow = shadow_ops.ShadowVariable(v)
    optimizer = de.DynamicEmbeddingOptimizer(make())
    for count in range(1, 4):
        ids = tf.range(count, dtype=tf.int64)

        def loss(ids=ids):
            rows = shadow_ops.embedding_lookup(shadow, ids)
            return tf.reduce_sum(tf.reduce_mean(rows, axis=0) ** 2)

        optimizer.minimize(loss, var_list=[shadow])

        rows = v.lookup(ids).numpy()
        assert rows[0, 0] < 0.1
        np.testing.assert_array_equal(shadow.read_value(False), rows)
        np.testing.assert_array_equal(shadow.numpy(), rows)


def test_a_wrappers_value_follows_a_step_too():
    v = de.Variable(dim=1, name="wrapped")
    optimizer = sgd()
    with tf.GradientTape() as tape:
        rows, wrapper = de.embedding_lookup(
            v, keys(1, 2), name="rows", return_trainable=True
        )
        loss = tf.reduce_sum(rows)
    optimizer.apply_gradients([(tape.gradient(loss, v), v)])
    assert wrapper.read_value(False).numpy().tolist() == [[-1], [-1]]
    assert wrapper.read_value().numpy().tolist() == [[-1], [-1]]


def test_a_function_reads_a_wrappers_rows_each_time_and_keeps_none():
    v = de.Variable(dim=1, name="read_in_a_function")
    _, wrapper = de.embedding_lookup(
        v, keys(1), name="rows", return_trainable=True
    )

    @tf.function
    def read():
        return wrapper.read_value()

    assert read().numpy().tolist() == [[0]]
    v.upsert(keys(1), [[3.0]])
    assert read().numpy().tolist() == [[3]]
    wrapper.note_step()
    read.get_concrete_function()
    assert wrapper.read_value().numpy().tolist() == [[3]]
    assert wrapper.prefetch_values().numpy().tolist() == [[3]]


def test_a_value_that_was_assigned_after_a_step_is_what_is_written():
    v = de.Variable(dim=1, name="assigned")
    shadow, optimizer = shadow_ops.ShadowVariable(v), sgd()
    optimizer.minimize(
        lambda: tf.reduce_sum(shadow_ops.embedding_lookup(shadow, keys(1))),
        [shadow],
    )
    shadow.assign([[7.0]])
    shadow.update_op()
    assert rows_of(v, 1) == [7]


def test_other_ids_leave_the_value_of_a_step_until_they_are_read():
    v = de.Variable(dim=1, name="reset")
    shadow, optimizer = shadow_ops.ShadowVariable(v), sgd()
    optimizer.minimize(
        lambda: tf.reduce_sum(shadow_ops.embedding_lookup(shadow, keys(1))),
        [shadow],
    )
    shadow._reset_ids(keys(5, 6))
    assert shadow.read_value(do_prefetch=False).numpy().tolist() == [[-1]]
    assert shadow.read_value().numpy().tolist() == [[0], [0]]
