"""Tables are known by the names that programs gave them, wherever one looks."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from tfembed.errors import MissingTableError
from tfembed.inspection import command
from tfembed.saved.saved_tables import open_saved

NAMES = {"users", "films", "years", "genres"}


def _model():
    """A model with a table of each kind of layer."""
    configs = {
        name: tfembed.FeatureConfig(tfembed.TableConfig(size, 2, name=name))
        for name, size in {"films": None, "years": 9}.items()
    }
    ids = {
        name: keras.Input((), dtype="int64", name=f"{name}_id")
        for name in sorted(NAMES)
    }
    rows = tfembed.keras.layers.DistributedEmbedding(configs, name="both")(
        {name: ids[name] for name in configs}
    )
    users = tfembed.keras.layers.Embedding(2, name="users")
    genres = de.keras.layers.Embedding(2, name="genres")
    everything = [*rows.values(), users(ids["users"]), genres(ids["genres"])]
    return keras.Model(list(ids.values()), keras.layers.Add()(everything))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """By kind of file, its path."""
    folder = tmp_path_factory.mktemp("names")
    model = _model()
    paths = {
        "keras": f"{folder}/model.keras",
        "weights": f"{folder}/model.weights.h5",
        "exported": f"{folder}/exported",
        "checkpoint": f"{folder}/checkpoint",
    }
    model.save(paths["keras"])
    model.save_weights(paths["weights"])
    model.export(paths["exported"], verbose=False)
    tf.train.Checkpoint(model=model).write(paths["checkpoint"])
    return paths


@pytest.mark.parametrize("kind", ["keras", "weights", "exported", "checkpoint"])
def test_files_name_tables_as_the_program_does(capsys, saved, kind):
    tables = open_saved(saved[kind])

    assert set(tables) == NAMES
    assert tables["users"] is tables[tables["users"].path]
    assert {t.name for t in tfembed.health(saved[kind])} == NAMES
    assert command.main(["inspect", saved[kind], "--table", "users"]) == 0
    assert tables["users"].path in capsys.readouterr().out


def test_health_names_tables_as_the_program_does():
    model = _model()
    model.get_layer("both").embedding.build()

    assert {table.name for table in tfembed.health(model)} == NAMES


def test_messages_name_the_table_of_a_layer_as_the_layer():
    layer = tfembed.keras.layers.Embedding(2, name="users", key_dtype="int64")

    assert layer.table.name == "users"


def test_tables_of_one_name_are_told_apart_by_their_paths(capsys, tmp_path):
    model = tf.Module()
    model.first = tfembed.HashTable(2, name="users")
    model.second = tfembed.HashTable(2, name="users")
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "two"))
    paths = ["model/first", "model/second"]

    assert list(open_saved(path)) == paths
    for health in (tfembed.health(path), tfembed.health({"model": model})):
        assert "Several tables are called 'users'" in str(health)
        assert len({table.name for table in health}) == 2
    assert list(tfembed.health({"model": model}).to_dict()) == [
        "model/first/users",
        "model/second/users",
    ]
    assert command.main(["inspect", path]) == 0
    assert "Several tables are called 'users'" in capsys.readouterr().out
    with pytest.raises(MissingTableError, match=f"'{paths[0]}', '{paths[1]}'"):
        open_saved(path)["users"]


def test_a_difference_finds_a_table_in_another_kind_of_file(capsys, saved):
    files = (saved["checkpoint"], saved["keras"])

    assert command.main(["inspect", "--diff", *files]) == 0
    out = capsys.readouterr().out
    assert "only in" not in out
    assert out.count("keys before") == len(NAMES)
