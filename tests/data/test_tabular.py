"""CSV, Parquet and TFRecord files give the same batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed.errors import ArgumentError, DataError, UnsupportedError

ROWS = [
    {"user": "ann", "item": 10**15, "genres": [1, 2], "price": 0.5, "y": 1},
    {"user": "bob", "item": -7, "genres": [], "price": 2.0, "y": 0},
    {"user": "", "item": 0, "genres": [3], "price": -1.0, "y": 1},
]
COLUMNS = {
    "user": "string",
    "item": tf.int64,
    "genres": tfembed.data.Bag("int64"),
    "price": "float32",
    "y": "int32",
}


def write_csv(path, rows=ROWS, names=tuple(COLUMNS)):
    lines = [",".join(names)]
    for row in rows:
        fields = {**row, "genres": "|".join(map(str, row["genres"]))}
        lines.append(",".join(str(fields[name]) for name in names))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(path, rows=ROWS):
    pa = pytest.importorskip("pyarrow", reason="an extra")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_tfrecord(path, rows=ROWS):
    def feature(value):
        values = value if isinstance(value, list) else [value]
        if isinstance(value, str):
            return tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[value.encode()])
            )
        if isinstance(value, float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    with tf.io.TFRecordWriter(str(path)) as file:
        for row in rows:
            features = {name: feature(value) for name, value in row.items()}
            file.write(
                tf.train.Example(
                    features=tf.train.Features(feature=features)
                ).SerializeToString()
            )
    return path


WRITERS = {
    "csv": write_csv,
    "parquet": write_parquet,
    "tfrecord": write_tfrecord,
}


def read(form, *arguments, **options):
    return list(getattr(tfembed.data, form)(*arguments, **options))


@pytest.mark.parametrize("form", WRITERS)
def test_every_format_gives_the_rows_in_batches(form, tmp_path):
    path = WRITERS[form](tmp_path / "rows")

    batches = read(form, path, COLUMNS, 2, label="y")

    assert [len(label) for _, label in batches] == [2, 1]
    features, label = batches[0]
    assert features["user"].numpy().tolist() == [b"ann", b"bob"]
    assert features["item"].numpy().tolist() == [10**15, -7]
    assert features["genres"].to_list() == [[1, 2], []]
    assert features["price"].numpy().tolist() == [0.5, 2.0]
    assert label.numpy().tolist() == [1, 0]
    assert {k: v.dtype for k, v in features.items()} == {
        "user": tf.string,
        "item": tf.int64,
        "genres": tf.int64,
        "price": tf.float32,
    }
    assert batches[1][0]["user"].numpy().tolist() == [b""]


@pytest.mark.parametrize("form", WRITERS)
def test_files_are_read_in_order_epochs_times_and_shuffled_by_a_seed(
    form, tmp_path
):
    for number in range(3):
        rows = [{**row, "item": number} for row in ROWS]
        WRITERS[form](tmp_path / f"part-{number}", rows)

    def items(**options):
        batches = read(
            form, tmp_path / "part-*", {"item": "int64"}, 4, **options
        )
        return np.concatenate([batch["item"] for batch in batches]).tolist()

    assert items(epochs=2) == [0, 0, 0, 1, 1, 1, 2, 2, 2] * 2
    drawn = items(shuffle=9, seed=3)
    assert drawn != items() and sorted(drawn) == items()
    assert items(shuffle=9, seed=3) == drawn


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_column_that_is_not_there_is_named_with_those_that_are(
    form, tmp_path
):
    path = WRITERS[form](tmp_path / "rows")

    with pytest.raises(DataError, match=r"rows.*'usr'.*it has 'user', 'item'"):
        read(form, path, {"usr": "string"}, 2)


@pytest.mark.parametrize("form", WRITERS)
def test_bad_arguments_say_what_is_taken(form, tmp_path):
    path = WRITERS[form](tmp_path / "rows")

    with pytest.raises(DataError, match="matches no file"):
        read(form, tmp_path / "none-*", {"item": "int64"}, 2)
    with pytest.raises(DataError, match="does not exist"):
        read(form, tmp_path / "none", {"item": "int64"}, 2)
    with pytest.raises(ArgumentError, match="names no column"):
        read(form, path, {}, 2)
    with pytest.raises(ArgumentError, match="`label` is 'z'.*user"):
        read(form, path, COLUMNS, 2, label="z")
    with pytest.raises(ArgumentError, match=r"'item' is given 'text'.*int64"):
        read(form, path, {"item": "text"}, 2)
    with pytest.raises(ArgumentError, match="`batch_size` must be"):
        read(form, path, COLUMNS, 0)


def test_csv_files_may_have_their_columns_in_another_order(tmp_path):
    write_csv(tmp_path / "a", ROWS[:1])
    write_csv(tmp_path / "b", ROWS[1:2], names=("item", "genres", "user"))

    (batch,) = read(
        "csv", tmp_path / "*", {"user": "string", "item": "int64"}, 2
    )

    assert batch["user"].numpy().tolist() == [b"ann", b"bob"]
    assert batch["item"].numpy().tolist() == [10**15, -7]


def test_a_csv_bag_of_strings_has_no_empty_strings(tmp_path):
    (tmp_path / "a.csv").write_text('tags\n"x y;z"\n""\n')

    (batch,) = read(
        "csv",
        tmp_path / "a.csv",
        {"tags": tfembed.data.Bag("string", separator=";")},
        2,
    )

    assert batch["tags"].to_list() == [[b"x y", b"z"], []]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"user": "int64"}, "'user' is of .*string: int64 is requested"),
        ({"genres": "int64"}, "'genres' is of list.*: name it as a Bag"),
        ({"item": tfembed.data.Bag()}, "'item' is of int64: it is not a Bag"),
        (
            {"item": "int32"},
            "row 1: column 'item' is 1000000000000000, which does not fit int32",
        ),
    ],
)
def test_parquet_columns_are_not_bent_to_another_dtype(asked, said, tmp_path):
    path = write_parquet(tmp_path / "rows")

    with pytest.raises(Exception, match=said):
        read("parquet", path, asked, 2)


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = write_parquet(tmp_path / "rows.parquet")
    path.write_bytes(path.read_bytes()[:40])

    with pytest.raises(DataError, match=r"rows\.parquet.*cannot be read"):
        read("parquet", path, {"item": "int64"}, 2)


def test_a_file_system_that_tensorflow_does_not_know_names_the_package(
    monkeypatch,
):
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_io", None)

    with pytest.raises(
        UnsupportedError, match="needs tensorflow_io, which is not"
    ):
        read("csv", "nowhere://bucket/a.csv", {"item": "int64"}, 2)


def test_a_table_trains_on_batches_of_a_file(tmp_path):
    path = write_csv(tmp_path / "rows")
    data = tfembed.data.csv(path, COLUMNS, 3, label="y")
    tables = {
        "user": tfembed.TableConfig(
            vocabulary_size=None, dim=2, key_dtype=tf.string, name="users"
        ),
        "genres": tfembed.TableConfig(
            vocabulary_size=None, dim=2, name="genres"
        ),
    }
    embedding = tfembed.TPUEmbedding(
        {n: tfembed.FeatureConfig(table=t) for n, t in tables.items()},
        tfembed.SGD(0.1),
    )

    for features, _ in data:
        embedding.enqueue({name: features[name] for name in tables})
        rows = embedding.dequeue()
        embedding.apply_gradients(tf.nest.map_structure(tf.ones_like, rows))

    assert embedding.embedding_tables[tables["user"]].size() == 3
    assert embedding.embedding_tables[tables["genres"]].size() == 3
