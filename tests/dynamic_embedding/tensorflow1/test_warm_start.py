"""Variables that begin with the rows of a Saver's checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import graph_and_session, variable
from tfembed import errors, policies

v1 = tf.compat.v1
KEYS = [5, 6, 7, 8]
ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)


def saved(folder, name="users", shards=1, keys=KEYS, **options):
    """The path of a checkpoint of one variable."""
    with graph_and_session() as session:
        v = variable(shards, name, dim=2, **options)
        session.run(v.upsert(keys, ROWS))
        return v1.train.Saver([v.saveable]).save(session, str(folder / "ckpt"))


def of_tfra(folder, shards=2):
    """A checkpoint with the tensors of TFRA's Saver: a pair a shard."""
    tensors = {}
    for i in range(shards):
        stem = f"users_mht_{i + 1}of{shards}"
        tensors[f"{stem}-keys"] = np.array(KEYS[i::shards], np.int64)
        tensors[f"{stem}-values"] = ROWS[i::shards]
    path = str(folder / "tfra")
    names = list(tensors)
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(tensors[name]) for name in names],
    )
    return path


@pytest.mark.parametrize("make", [saved, of_tfra])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_graph_has_the_rows_of_the_checkpoint_and_no_others(
    tmp_path, make, shards
):
    path = make(tmp_path)
    with graph_and_session() as session:
        v, other = variable(shards, "users", dim=2), variable(1, "items")
        session.run([v.upsert([5, 99], ROWS[2:]), other.upsert([1], [[3.0]])])
        session.run(de.warm_start(path, "users"))
        np.testing.assert_array_equal(session.run(v.lookup(KEYS)), ROWS)
        assert session.run([v.size(), other.size()]) == [4, 1]


@pytest.mark.parametrize("make", [saved, of_tfra])
def test_eager_variables_are_given_themselves(tmp_path, make):
    path = make(tmp_path)
    v = variable(2, "users", dim=2)
    v.upsert([99], ROWS[:1])
    assert de.warm_start(path, [v]) is None
    np.testing.assert_array_equal(v.lookup(KEYS), ROWS)
    assert int(v.size()) == 4


def test_string_keys_are_warm_too(tmp_path):
    keys = ["a", "b", "", "d"]
    path = saved(tmp_path, keys=keys, key_dtype=tf.string)
    v = variable(2, "users", dim=2, key_dtype=tf.string)
    de.warm_start(path, [v])
    np.testing.assert_array_equal(v.lookup(tf.constant(keys)), ROWS)


def test_a_folder_stands_for_its_latest_checkpoint(tmp_path):
    saved(tmp_path)
    v = variable(1, "users", dim=2)
    de.warm_start(str(tmp_path), [v])
    assert int(v.size()) == 4


@pytest.mark.parametrize("scoped", ["old/users", "users"])
def test_a_variable_may_have_been_called_otherwise(tmp_path, scoped):
    path = saved(tmp_path, name=scoped)
    v = variable(1, "new", dim=2)
    de.warm_start(path, [v], {"new": scoped})
    np.testing.assert_array_equal(v.lookup(KEYS), ROWS)


def test_slots_begin_anew(tmp_path):
    path = saved(tmp_path)
    v = variable(1, "users", dim=2)
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.Adam(0.5))

    def loss():
        return tf.reduce_sum(de.embedding_lookup(v, [5], name="rows"))

    with tf.GradientTape() as tape:
        value = loss()
    optimizer.apply_gradients([(tape.gradient(value, v), v)])
    de.warm_start(path, [v])
    np.testing.assert_array_equal(v.lookup(KEYS), ROWS)
    for slot in v.get_slot_variables(optimizer):
        assert not slot.lookup(tf.constant([5], tf.int64)).numpy().any()


def test_a_hook_warms_what_a_monitored_session_trains(tmp_path):
    path = saved(tmp_path)
    with tf.Graph().as_default():
        v = variable(2, "users", dim=2)
        found = v.lookup(KEYS)
        hook = de.WarmStartHook(path, ["users"])
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            np.testing.assert_array_equal(session.run(found), ROWS)


def test_variables_are_chosen_by_the_beginning_of_their_names(tmp_path):
    path = saved(tmp_path)
    with graph_and_session() as session:
        v, other = variable(1, "users", dim=2), variable(1, "the_users", dim=2)
        v1.add_to_collection(de.GraphKeys.DYNAMIC_EMBEDDING_VARIABLES, v)
        for chosen in ("use", ["use", "users"], [v]):
            session.run(v.clear())
            session.run(de.warm_start(path, chosen))
            assert session.run([v.size(), other.size()]) == [4, 0]
        # All of them, of which the checkpoint lacks one.
        for chosen in (".*", None):
            with pytest.raises(errors.ArgumentError, match="'the_users'"):
                de.warm_start(path, chosen)


@pytest.mark.parametrize(
    ("made", "error", "match"),
    [
        ({"dim": 3}, errors.ArgumentError, "width 3.*\\[2\\]"),
        ({"dim": 2, "key_dtype": tf.string}, errors.DtypeError, "string"),
        ({"dim": 2, "value_dtype": tf.int32}, errors.DtypeError, "int32"),
        (
            {"dim": 2, "name": "items"},
            errors.ArgumentError,
            "'items'.*users_mht",
        ),
    ],
    ids=str,
)
def test_rows_that_do_not_fit_change_nothing(tmp_path, made, error, match):
    path = saved(tmp_path)
    fits = variable(1, "users", dim=2)
    fits.upsert([1], ROWS[:1])
    bad = variable(**{"name": "users", **made})
    with pytest.raises(error, match=match):
        de.warm_start(path, [fits, bad])
    assert int(fits.size()) == 1


@pytest.mark.parametrize("shards", [1, 2])
def test_more_rows_than_a_variable_holds_are_refused_with_the_numbers(
    tmp_path, shards
):
    path = saved(tmp_path)
    v = variable(shards, dim=2, max_size=2, eviction=policies.LeastRecent())
    v.upsert([99], ROWS[:1])

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        de.warm_start(path, [v], {"table": "users"})
    assert "max_size=2" in str(caught.value)
    assert "restrict" in str(caught.value) and "batch" not in str(caught.value)
    assert f"[{4 // shards}]" in str(caught.value)
    assert v.size() == 1


def test_a_shard_that_is_missing_is_named(tmp_path):
    path = str(tmp_path / "half")
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=["users_mht_1of2-keys", "users_mht_1of2-values"],
        shape_and_slices=["", ""],
        tensors=[tf.constant([1], tf.int64), tf.constant([[1.0, 2.0]])],
    )
    with pytest.raises(errors.ArgumentError, match="users_mht_2of2-keys"):
        de.warm_start(path, [variable(1, "users", dim=2)])


@pytest.mark.parametrize("wanted", [3, [3], [".*", 3], ".*", None, ["users"]])
def test_what_is_no_list_of_variables_is_refused_in_eager_mode(
    tmp_path, wanted
):
    path = saved(tmp_path)
    with pytest.raises(errors.ArgumentError, match="vars_to_warm_start"):
        de.warm_start(path, wanted)


def test_a_checkpoint_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises((ValueError, tf.errors.OpError)):
        de.warm_start(str(tmp_path / "none"), [variable(1, "users", dim=2)])
