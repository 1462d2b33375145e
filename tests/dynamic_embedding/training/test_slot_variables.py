"""Views of slots: names, rows, what follows the variable and what is saved."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import graph_and_session, start
from tests.dynamic_embedding.optimizer_makers import V1, K, legacy
from tfembed import optimizers


def trained(optimizer, keys=(1, 2), **options):
    """A variable after one step with gradient 1, and its slots."""
    v = de.Variable(dim=2, name="user", **options)
    step(v, optimizer, keys)
    return v, v.get_slot_variables(optimizer)


def step(v, optimizer, keys=(1, 2)):
    gradient = tf.ones([len(keys), 2])
    slices = tf.IndexedSlices(gradient, tf.constant(keys, tf.int64))
    optimizer.apply_gradients([(slices, v)])


def wrapped(optimizer):
    return de.DynamicEmbeddingOptimizer(optimizer)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: K.Adam(), ["adam/momentum", "adam/velocity"]),
        (lambda: K.Adagrad(name="a"), ["a/accumulator"]),
        (lambda: K.RMSprop(), ["rmsprop/velocity"]),
        (lambda: V1.AdamOptimizer(), ["Adam/m", "Adam/v"]),
        (lambda: V1.FtrlOptimizer(0.1), ["Ftrl/accum", "Ftrl/linear"]),
        (lambda: legacy().Adam(), ["Adam/m", "Adam/v"]),
        (lambda: legacy().RMSprop(name="r"), ["r/rms"]),
        (lambda: optimizers.Adagrad(0.1), ["Adagrad/accumulators"]),
        (lambda: K.SGD(), []),
    ],
)
def test_slots_are_called_as_their_optimizer_calls_them(make, names):
    _, slots = trained(wrapped(make()))
    assert [slot.name for slot in slots] == [f"user/{n}" for n in names]


def test_short_names_leave_the_optimizer_out():
    _, (slot,) = trained(wrapped(K.Adagrad()), short_file_name=True)
    assert slot.name == "user/accumulator"


@pytest.mark.parametrize("shards", [1, 3])
def test_a_slot_is_read_and_written_by_key(shards):
    v, slots = trained(wrapped(K.Adam()), devices=["/CPU:0"] * shards)
    momentum, velocity = slots
    before, second = v.lookup([1, 2]).numpy(), velocity.lookup([1, 2]).numpy()
    rows, exists = momentum.lookup([[1], [9]], return_exists=True)
    np.testing.assert_allclose(rows[0], [[0.1, 0.1]], rtol=1e-6)
    assert rows.shape == (2, 1, 2)
    assert exists.numpy().tolist() == [[True], [False]]

    momentum.upsert([2, 7], [[3.0, 4.0], [5.0, 6.0]])

    keys, rows = momentum.export()
    by_key = dict(zip(keys.numpy(), rows.numpy().tolist(), strict=True))
    assert by_key[2] == [3, 4]
    assert by_key[7] == [5, 6]
    assert int(momentum.size()) == int(v.size()) == 3
    np.testing.assert_array_equal(v.lookup([1, 2]), before)
    np.testing.assert_array_equal(velocity.lookup([1, 2]), second)


def test_a_slot_has_its_variables_keys_width_and_shards():
    v, (slot,) = trained(wrapped(K.Adagrad()), devices=["/CPU:0"] * 2)
    assert (slot.dim, slot.key_dtype, slot.shard_num) == (2, tf.int64, 2)
    assert slot.params is v
    assert not slot.trainable
    assert "user/adagrad/accumulator" in repr(slot)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_slot_of_one_number_a_row_is_read_and_written_by_key(shards):
    v, (slot,) = trained(
        wrapped(optimizers.RowWiseAdagrad(0.1, initial_accumulator_value=0.5)),
        devices=["/CPU:0"] * shards,
    )
    before = v.lookup([1, 2]).numpy()
    assert slot.dim == slot.tables[0].dim == 1
    assert slot.lookup([1, 2, 9]).numpy().tolist() == [[1.5], [1.5], [0.5]]

    slot.upsert([2], [[3.0]])

    keys, rows = slot.export()
    assert dict(zip(keys.numpy(), rows.numpy()[:, 0], strict=True))[2] == 3
    np.testing.assert_array_equal(v.lookup([1, 2]), before)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1,1\]"):
        slot.upsert([2], [[3.0, 4.0]])


@pytest.mark.parametrize("shards", [1, 2])
def test_the_tables_of_a_slot_hand_out_its_rows_shard_by_shard(shards):
    v, (slot,) = trained(
        wrapped(K.Adagrad(0.1, 0.5, epsilon=0)),
        range(5),
        devices=["/CPU:0"] * shards,
    )
    slot.upsert(range(5), np.repeat(np.arange(5.0)[:, None], 2, axis=1))
    assert [table.name for table in slot.tables] == [
        f"user_adagrad_accumulator_mht_{i + 1}of{shards}" for i in range(shards)
    ]
    for i, table in enumerate(slot.tables):
        keys, rows = (x.numpy() for x in table.export())
        assert sorted(keys) == list(range(i, 5, shards))
        assert rows.tolist() == [[key, key] for key in keys]
        assert int(table.size()) == int(v.size(i))
    table = slot.tables[0]
    table.insert([0], [[7.0, 8.0]])
    rows, exists = table.lookup([0, 9], [[3.0, 3.0]], True)
    assert rows.numpy().tolist() == [[7, 8], [3, 3]]
    assert exists.numpy().tolist() == [True, False]
    other, is_here = slot.tables[-1].lookup([0], return_exists=True)
    assert other.numpy().tolist() == [[7, 8] if shards == 1 else [0.5, 0.5]]
    assert bool(is_here[0]) == (shards == 1)
    assert (table.dim, table.value_dtype) == (2, tf.float32)
    assert repr(table).startswith(f"<SlotShard '{table.name}' of SlotVar")


def test_a_saver_takes_the_tables_of_a_variable_and_of_its_slots(tmp_path):
    with graph_and_session() as session:
        v = de.Variable(dim=2, name="user")
        rows, wrapper = de.embedding_lookup(v, [1], return_trainable=True)
        optimizer = wrapped(V1.AdamOptimizer(0.1))
        train = optimizer.minimize(tf.reduce_sum(rows), var_list=[wrapper])
        slots = v.get_slot_variables(optimizer)
        saver = tf.compat.v1.train.Saver(
            [table for one in (v, *slots) for table in one.tables]
        )
        start(session)
        session.run(train)
        exports = [one.export() for one in (v, *slots)]
        saved = session.run(exports)
        path = saver.save(session, str(tmp_path / "ckpt"))
        session.run(train)
        session.run(v.upsert([5], [[5.0, 5.0]]))
        saver.restore(session, path)
        for before, after in zip(saved, session.run(exports), strict=True):
            np.testing.assert_array_equal(before[0], after[0])
            np.testing.assert_array_equal(before[1], after[1])
    assert saved[1][0].tolist() == [1]


@pytest.mark.parametrize(
    "use",
    [
        lambda slot: slot.remove([1]),
        lambda slot: slot.clear(),
        lambda slot: slot.tables[0].remove([1]),
        lambda slot: slot.tables[0].clear(),
    ],
)
def test_a_slot_cannot_go_without_its_row(use):
    v, (slot,) = trained(wrapped(K.Adagrad()))
    with pytest.raises(NotImplementedError, match="rows of 'user'"):
        use(slot)
    assert int(v.size()) == 2


def test_an_optimizer_that_never_moved_a_variable_has_no_slots_in_it():
    v, _ = trained(wrapped(K.Adam()))
    assert v.get_slot_variables(wrapped(K.RMSprop())) == []
    assert v.get_slot_variables(K.Adam()) == []
    assert de.Variable().get_slot_variables(wrapped(K.Adam())) == []


def test_created_slots_are_variables_beside_theirs():
    v = de.Variable(dim=3, name="ct1", devices=["/CPU:0"] * 2)
    slot = de.create_slots(v, 0.5, "m", "s1", True)
    assert slot.name == "ct1/s1/m"
    assert (slot.dim, slot.shard_num, slot.bp_v2) == (3, 2, True)
    assert not slot.trainable
    assert slot.lookup([4]).numpy().tolist() == [[0.5] * 3]


@pytest.mark.parametrize(
    "make",
    [
        K.Nadam,
        K.RMSprop,
        V1.AdamOptimizer,
        lambda learning_rate: legacy().Adam(learning_rate),
        lambda learning_rate: legacy().Nadam(learning_rate),
    ],
)
def test_training_goes_on_from_a_checkpoint(make, tmp_path):
    def build():
        optimizer = wrapped(make(learning_rate=0.1))
        v = de.Variable(dim=2, name="user")
        return v, optimizer, tf.train.Checkpoint(v=v, optimizer=optimizer)

    v, optimizer, checkpoint = build()
    for _ in range(3):
        step(v, optimizer)
    path = checkpoint.save(tmp_path / "c")
    step(v, optimizer)

    again, other, checkpoint = build()
    checkpoint.restore(path)
    step(again, other)
    assert int(other.iterations) == 4
    np.testing.assert_array_equal(again.lookup([1, 2]), v.lookup([1, 2]))
    for slot, wanted in zip(
        again.get_slot_variables(other),
        v.get_slot_variables(optimizer),
        strict=True,
    ):
        np.testing.assert_array_equal(slot.lookup([1]), wanted.lookup([1]))


def test_a_slots_rows_are_in_a_checkpoint_beside_its_variables(tmp_path):
    v, (slot,) = trained(wrapped(K.Adagrad(0.1, 0.5)))
    path = tf.train.Checkpoint(v=v).save(tmp_path / "c")
    key = f"v/table/.ATTRIBUTES/slots/{slot.slot_name}"
    saved = tf.train.load_checkpoint(path).get_tensor(key)
    np.testing.assert_array_equal(saved, slot.export()[1])
