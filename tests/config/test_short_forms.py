"""Names and numbers in place of objects, for every kind of table."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import dynamic_embedding as de
from tfembed import errors
from tfembed.policies import CountAdmission


def grown(**options):
    return tfembed.TableConfig(None, 2, name="users", **options)


def of_estimator(**options):
    return tfembed.estimator.embedding_column(
        "users", 2, **options
    ).table_config


def rows_of_config(make, name):
    config = tfembed.FeatureConfig(make(name))
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    embedding.enqueue([1])
    return embedding.dequeue()


KINDS = {
    "static table": lambda name: rows_of_config(
        lambda n: tfembed.TableConfig(8, 2, n, name="users"), name
    ),
    "table without a vocabulary": lambda name: rows_of_config(
        lambda n: grown(initializer=n), name
    ),
    "static table of V0": lambda name: tfembed.TPUEmbeddingV0(
        tfembed.FeatureConfig(tfembed.TableConfig(8, 2, name, name="users")),
        None,
    )([1]),
    "HashTable": lambda name: tfembed.HashTable(2, name="t", initializer=name)[
        [1]
    ],
    "Variable": lambda name: de.Variable(dim=2, initializer=name)[[1]],
    "layer": lambda name: de.keras.layers.Embedding(2, initializer=name)(
        tf.constant([1])
    ),
    "estimator's": lambda name: of_estimator(initializer=name).initializer,
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_an_initializer_is_known_by_its_name(make):
    found = make("uniform")
    if isinstance(found, tfembed.RowInitializer):
        assert found.kind == "uniform"
        return
    rows = np.asarray(found)
    assert 0 < np.abs(rows).max() <= 0.05  # Keras' "uniform".
    np.testing.assert_array_equal(np.asarray(make("ones")), [[1, 1]])


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", ["unifrom", ""])
def test_a_name_that_no_initializer_has_is_told(make, name):
    with pytest.raises(errors.ArgumentError, match=f"{name!r}.*'uniform'"):
        make(name)


@pytest.mark.parametrize("make", [grown, of_estimator])
def test_dtypes_are_known_by_their_names(make):
    config = make(key_dtype="string", dtype="float16")
    assert config.key_dtype is tf.string
    assert config.dtype is tf.float16


@pytest.mark.parametrize("make", [grown, of_estimator])
@pytest.mark.parametrize("name", ["key_dtype", "dtype"])
def test_a_name_that_no_dtype_has_is_told(make, name):
    with pytest.raises(errors.ArgumentError, match=f"{name}.*'strnig'"):
        make(**{name: "strnig"})


def test_string_ids_by_name_are_trained():
    config = tfembed.FeatureConfig(grown(key_dtype="string"))
    embedding = tfembed.TPUEmbedding(config, tfembed.SGD(1.0))
    embedding.enqueue(["a"])
    embedding.apply_gradients(tf.ones_like(embedding.dequeue()))
    assert "a" in embedding.embedding_tables["users"]


@pytest.mark.parametrize(
    "admission_of",
    [
        lambda n: grown(admission=n).admission,
        lambda n: of_estimator(admission=n).admission,
        lambda n: tfembed.HashTable(2, name="t", admission=n).admission,
        lambda n: de.Variable(dim=2, admission=n).table.admission,
        lambda n: (
            de.keras.layers.Embedding(2, admission=n).params.table.admission
        ),
    ],
    ids=["TableConfig", "estimator", "HashTable", "Variable", "layer"],
)
def test_a_number_admits_keys_when_they_were_seen_so_often(admission_of):
    assert admission_of(3) == CountAdmission(3)
    assert admission_of(np.int64(3)) == CountAdmission(3)
    for wrong in (0, -1, 2**25):
        with pytest.raises(errors.ArgumentError, match="seen"):
            admission_of(wrong)


def test_no_number_is_no_admission():
    for wrong in (True, "3", 2.5):
        with pytest.raises(errors.DtypeError, match="number of steps"):
            tfembed.HashTable(2, name="t", admission=wrong)


def test_a_layer_with_a_number_is_saved_as_its_policy():
    layer = de.keras.layers.Embedding(2, admission=3)
    again = type(layer).from_config(layer.get_config())
    assert again.params.table.admission == CountAdmission(3)


@pytest.mark.parametrize("make", [tfembed.TPUEmbedding, tfembed.TPUEmbeddingV0])
def test_tables_are_found_by_their_names(make):
    users = tfembed.TableConfig(8, 2, name="users")
    items = tfembed.TableConfig(None, 2, name="items")
    features = [tfembed.FeatureConfig(users), tfembed.FeatureConfig(items)]
    tables = make(features, None).embedding_tables
    assert tables["users"] is tables[users]
    assert tables.get("items") is tables[items]
    assert "users" in tables
    assert items in tables
    assert tables.get("none") is None
    assert "none" not in tables
    assert list(tables) == [users, items]
    with pytest.raises(KeyError, match=r"'none'; the tables are \['users'"):
        tables["none"]
