"""SavedModels of TensorFlow 1: graphs with Savers, one or several in a folder.

`front_doors.graph` and `front_doors.estimator` are served without tfembed.
"""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors
from tfembed.__main__ import main
from tfembed.export import Changes, changed, to_stock
from tfembed.policies import CountAdmission

v1 = tf.compat.v1

_KEYS = np.arange(30) * 977 - 9999
_IDS = np.concatenate([_KEYS, [0, 1]])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with graphs to train and to serve, and what it serves."""
    folder = tmp_path_factory.mktemp("graphs") / "ours"
    builder = v1.saved_model.Builder(str(folder))
    with tf.Graph().as_default(), v1.Session() as session:
        table = de.get_variable(
            "table",
            dim=2,
            devices=["/CPU:0"] * 2,
            initializer=v1.random_normal_initializer(0, 1, seed=3),
            admission=CountAdmission(2, value=0.5),
        )
        ids = v1.placeholder(tf.int64, [None], "ids")
        with tf.device("/CPU:0"):  # One op restores it and the table.
            weight = v1.get_variable("weight", [2, 3])
        rows = tf.matmul(table.lookup(ids), weight)
        with tf.control_dependencies(
            [table.upsert(ids, tf.ones_like(rows[:, :2]))]
        ):
            trained = tf.identity(ids)
        session.run(v1.global_variables_initializer())
        session.run(
            table.upsert(_KEYS, np.random.default_rng(0).normal(size=[30, 2]))
        )
        served = session.run(rows, {ids: _IDS})
        for tags, name, output, add in (
            (["train"], "train", trained, builder.add_meta_graph_and_variables),
            (["serve", "cpu"], "serve", rows, builder.add_meta_graph),
        ):
            signature = v1.saved_model.predict_signature_def(
                {"ids": ids}, {"output": output}
            )
            of_session = [session] if "train" in tags else []
            add(*of_session, tags, signature_def_map={name: signature})
    builder.save()
    return types.SimpleNamespace(folder=folder, rows=served)


@pytest.fixture(scope="module")
def stock(exported):
    """The folder of the graph that serves, converted."""
    target = exported.folder.parent / "stock"
    tags = "cpu,serve"
    assert not main(
        ["export", str(exported.folder), str(target), "--tags", tags, "--live"]
    )
    return target


def test_a_graph_is_chosen_by_its_tags(exported, stock):
    served = tf.saved_model.load(stock).signatures["serve"]

    rows = served(ids=tf.constant(_IDS))["output"].numpy()
    assert rows.tobytes() == exported.rows.tobytes()
    names = [path.name for path in (stock / "variables").iterdir()]
    assert all(name.startswith("variables.") for name in names)


@pytest.mark.parametrize("tags", [None, "serve", ["serve", "gpu"]])
def test_a_folder_of_several_graphs_needs_the_tags_of_one(
    exported, tmp_path, tags
):
    known = r"\[\['train'\], \['cpu', 'serve'\]\]"
    with pytest.raises(errors.ArgumentError, match=known):
        to_stock(exported.folder, tmp_path / "stock", tags=tags)
    assert not list(tmp_path.iterdir())


def test_a_signature_of_a_graph_that_trains_is_refused(exported, tmp_path):
    with pytest.raises(
        errors.UnsupportedError, match="Signature 'train'.*Tfembed>TableUpsert"
    ):
        to_stock(exported.folder, tmp_path / "stock", tags="train")
    assert not list(tmp_path.iterdir())


def test_a_session_takes_an_update_of_a_graph(stock):
    rows = np.ones([2, 2], np.float32)
    changes = Changes([_KEYS[0], 5], rows, gone=[_KEYS[1]])
    update = changed({"table": changes}, since=stock)
    outputs = []
    with tf.Graph().as_default(), v1.Session() as session:
        meta = v1.saved_model.load(session, ["serve", "cpu"], str(stock))
        for name, given in (
            ("serve", {"ids": [_KEYS[0], 5, _KEYS[1], _KEYS[2], 0]}),
            ("tfembed_update", update),
            ("serve", {"ids": [_KEYS[0], 5, _KEYS[1], _KEYS[2], 0]}),
        ):
            signature = meta.signature_def[name]
            ((_, output),) = signature.outputs.items()
            feeds = {signature.inputs[n].name: v for n, v in given.items()}
            outputs.append(session.run(output.name, feeds))
        (weight,) = v1.global_variables("weight")
        kernel = session.run(weight)

    before, num_keys, after = outputs
    assert num_keys == 3
    np.testing.assert_allclose(after[:2], rows @ kernel, rtol=1e-6)
    # A key that is gone reads what a key that never came reads.
    np.testing.assert_array_equal(after[2], before[4])
    np.testing.assert_array_equal(after[3:], before[3:])


def test_a_session_saves_a_stock_graph_as_its_files_are(stock, tmp_path):
    prefix = str(tmp_path / "again")
    with tf.Graph().as_default(), v1.Session() as session:
        meta = v1.saved_model.load(session, ["serve", "cpu"], str(stock))
        assert not session.run(v1.report_uninitialized_variables()).size
        saver = v1.train.Saver(saver_def=meta.saver_def)
        saver.save(session, prefix, write_meta_graph=False)

    first, again = (
        tf.train.load_checkpoint(path)
        for path in (str(stock / "variables" / "variables"), prefix)
    )
    names = first.get_variable_to_shape_map()
    assert again.get_variable_to_shape_map() == names
    for name in names:
        np.testing.assert_array_equal(
            again.get_tensor(name), first.get_tensor(name)
        )
