"""tf.compat.v1.train.Saver in eager mode, which knows nothing of tables.

The kind: a table that is left out of a save without a word. Looked at: Savers of
Variables, shards, slots, shadows, wrappers, layers' weights and bare tables, in lists
and dicts, in eager mode and in graphs; name-based checkpoints that tf.train.Checkpoint
restores.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from tfembed import dynamic_embedding as de
from tfembed import errors
from tfembed.tables import HashTable, StringTable


def _variable(**options):
    variable = de.Variable(dim=2, name="rows", initializer=0.5, **options)
    variable.upsert([1], [[1.0, 2.0]])
    return variable


def _wrapper():
    _, wrapper = de.embedding_lookup(
        _variable(), tf.constant([1], tf.int64), name="q", return_trainable=True
    )
    return wrapper


OBJECTS = {
    "Variable": _variable,
    "shard": lambda: _variable().tables[0],
    "table": lambda: _variable().table,
    "HashTable": lambda: HashTable(2, name="rows"),
    "StringTable": lambda: StringTable(2, name="rows"),
}


def _weight(layer):
    layer(tf.constant([1], tf.int64))
    (weight,) = layer.trainable_weights
    return weight


# These stand for rows of a table.
SHADOWS = {
    "ShadowVariable": lambda: de.shadow_ops.ShadowVariable(
        _variable(), name="rows"
    ),
    "TrainableWrapper": _wrapper,
    "weight of a layer": lambda: _weight(
        de.keras.layers.Embedding(2, name="rows")
    ),
    "weight of a DistributedEmbedding": lambda: _weight(
        tfembed.keras.layers.DistributedEmbedding(
            tfembed.FeatureConfig(tfembed.TableConfig(8, 2, name="rows")),
            tfembed.SGD(0.1),
            name="rows",
        )
    ),
}


@pytest.mark.parametrize("kind", SHADOWS)
def test_a_saver_in_eager_mode_refuses_what_stands_for_rows(tmp_path, kind):
    one = SHADOWS[kind]()

    with pytest.raises(
        errors.UnsupportedError, match=r"rows.*eager mode.*tf\.train\.Ch"
    ):
        tf.compat.v1.train.Saver([one]).save(None, str(tmp_path / "ckpt"))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("named", [False, True])
def test_a_saver_in_eager_mode_refuses_tables_before_it_writes(
    tmp_path, kind, named
):
    one, dense = OBJECTS[kind](), tf.Variable(1.0, name="dense")
    given = {"one": one, "dense": dense} if named else [one, dense]
    saver = tf.compat.v1.train.Saver(given)

    with pytest.raises(errors.UnsupportedError, match=r"rows.*tf\.train\.Ch"):
        saver.save(None, str(tmp_path / "ckpt"))

    assert list(tmp_path.iterdir()) == []


def test_a_saver_in_eager_mode_refuses_to_restore_tables(tmp_path):
    dense = tf.Variable(1.0, name="dense")
    path = tf.compat.v1.train.Saver([dense]).save(None, str(tmp_path / "ckpt"))
    dense.assign(2.0)

    with pytest.raises(errors.UnsupportedError, match=r"tf\.train\.Ch"):
        tf.compat.v1.train.Saver([dense, _variable()]).restore(None, path)

    assert float(dense) == 2.0


def test_a_saver_in_eager_mode_saves_what_has_no_table(tmp_path):
    dense = tf.Variable(1.0, name="dense")
    saver = tf.compat.v1.train.Saver([dense])
    path = saver.save(None, str(tmp_path / "ckpt"))
    dense.assign(2.0)
    saver.restore(None, path)
    assert float(dense) == 1.0


def test_a_checkpoint_saves_and_restores_what_savers_refuse(tmp_path):
    variable = _variable()
    saver = tf.train.Checkpoint(variable=variable)
    path = saver.write(str(tmp_path / "ckpt"))
    variable.clear()
    saver.read(path).assert_consumed()
    assert variable.lookup([1]).numpy().tolist() == [[1.0, 2.0]]


def test_a_checkpoint_of_names_is_not_restored_into_tables_without_a_word(
    tmp_path,
):
    path = str(tmp_path / "ckpt")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = de.get_variable("rows", dim=2)
        session.run(variable.upsert([1], [[3.0, 4.0]]))
        tf.compat.v1.train.Saver([variable]).save(session, path)
    variable = _variable()

    with pytest.raises(errors.UnsupportedError, match="warm_start") as refused:
        tf.train.Checkpoint(variable=variable).restore(path)
    assert path in str(refused.value)
    de.warm_start(path, [variable])

    assert variable.lookup([1]).numpy().tolist() == [[3.0, 4.0]]


def test_a_graphs_saver_takes_the_variable_and_refuses_its_bare_table(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = de.get_variable("rows", dim=2)
        session.run(variable.upsert([1], [[3.0, 4.0]]))
        tf.compat.v1.train.Saver([variable]).save(session, str(tmp_path / "a"))

        with pytest.raises(errors.UnsupportedError, match="the Variable"):
            tf.compat.v1.train.Saver([variable.table])

    names = [name for name, _ in tf.train.list_variables(str(tmp_path / "a"))]
    assert "rows_mht_1of1-keys" in names
