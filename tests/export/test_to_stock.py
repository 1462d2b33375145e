"""Exports of all front doors, by TensorFlow's ops alone, equal bit for bit.

A process that cannot import tfembed loads each model in three ways: as Python
does, as a session does, and as servers do, by TensorFlow's C API.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, message_factory
from tensorflow.core.protobuf import saved_model_pb2

import fresh_process
import tfembed
from documents import DOCS
from export import front_doors
from tfembed import errors
from tfembed.__main__ import main
from tfembed.export import OutputReport, check, to_stock

LOADERS = ("load", "session", "c_api")

_SERVE = """
    import pathlib, sys

    class NoTfembed:
        def find_spec(self, name, *others):
            if name.split(".")[0] == "tfembed":
                raise ImportError("no tfembed here")

    sys.meta_path.insert(0, NoTfembed())
    import numpy as np
    import tensorflow as tf
    from export import c_api

    for folder in map(pathlib.Path, sys.argv[1:]):
        given = dict(np.load(folder / "inputs.npz", allow_pickle=True))
        path = str(folder / "stock")
        serve = tf.saved_model.load(path).signatures["serving_default"]
        outputs = serve(**{n: tf.constant(v) for n, v in given.items()})
        found = {n: v.numpy() for n, v in outputs.items()}
        np.savez(folder / "load.npz", **found)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meta = tf.compat.v1.saved_model.loader.load(
                session, ["serve"], path
            )
            signature = meta.signature_def["serving_default"]
            found = session.run(
                {n: t.name for n, t in signature.outputs.items()},
                {signature.inputs[n].name: v for n, v in given.items()},
            )
        np.savez(folder / "session.npz", **found)
        found = c_api.Model(path).run(
            {n: t.name for n, t in signature.outputs.items()},
            {signature.inputs[n].name: v for n, v in given.items()},
        )
        np.savez(folder / "c_api.npz", **found)
    assert not any(name.startswith("tfembed") for name in sys.modules)
"""


def _param(front_door):
    is_quick = front_door.__name__ in ("variable", "nested", "strings")
    marks = [] if is_quick else [pytest.mark.slow]
    return pytest.param(front_door, id=front_door.__name__, marks=marks)


@pytest.fixture(scope="module", params=map(_param, front_doors.ALL))
def served(request, tmp_path_factory):
    """A front door's models, ours and stock, with what they answered."""
    folder = tmp_path_factory.mktemp(request.param.__name__)
    inputs = request.param(str(folder / "ours"))
    np.savez(folder / "inputs.npz", **inputs)
    ours = tf.saved_model.load(str(folder / "ours"))
    outputs = ours.signatures["serving_default"](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    report = to_stock(folder / "ours", folder / "stock")
    fresh_process.output_of(_SERVE, folder)
    return types.SimpleNamespace(
        folder=folder,
        report=report,
        outputs={name: value.numpy() for name, value in outputs.items()},
    )


@pytest.mark.parametrize("loader", LOADERS)
def test_a_stock_model_answers_what_ours_answers(served, loader):
    stock = dict(np.load(served.folder / f"{loader}.npz"))

    assert stock.keys() == served.outputs.keys()
    for output, value in served.outputs.items():
        assert stock[output].dtype == value.dtype
        assert stock[output].shape == value.shape
        assert stock[output].tobytes() == value.tobytes(), output


def _signatures(path):
    """Returns the dtype and shape of each input and output."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((path / "saved_model.pb").read_bytes())
    return {
        (name, part, tensor): (info.dtype, str(info.tensor_shape))
        for name, one in model.meta_graphs[0].signature_def.items()
        for part in ("inputs", "outputs")
        for tensor, info in getattr(one, part).items()
    }


def test_a_stock_model_has_the_signatures_of_the_source(served):
    ours = _signatures(served.folder / "ours")

    assert _signatures(served.folder / "stock") == ours


def test_a_report_lists_tables_and_functions_that_were_left_out(tmp_path):
    model = _model(lambda table, ids: {"rows": table.lookup(ids)[0]})
    model.train = tf.function(
        lambda ids: model.table.upsert(ids, tf.zeros([tf.size(ids), 2])),
        input_signature=[tf.TensorSpec([None], tf.int64, "ids")],
    )
    tf.saved_model.save(model, tmp_path / "ours")

    report = to_stock(tmp_path / "ours", tmp_path / "stock")
    stock = tf.saved_model.load(tmp_path / "stock")

    (table,) = report.tables
    assert (table.name, table.num_rows, table.row_bytes) == ("user", 2, 8)
    assert list(report.left_out) == ["train"]
    assert "Tfembed>TableUpsert" in str(report)
    rows = stock.serve(tf.constant([1], tf.int64))["rows"]
    np.testing.assert_array_equal(rows, [[1, 1]])


def _model(signature):
    """Returns a model with a table of two rows, and its signatures."""
    model = tf.Module()
    model.table = tfembed.HashTable(2, name="user")
    model.table.upsert([1, 2], np.ones([2, 2]))
    model.serve = tf.function(
        lambda ids: signature(model.table, ids),
        input_signature=[tf.TensorSpec([None], tf.int64, "ids")],
    )
    return model


def test_a_signature_that_trains_is_refused_before_anything_is_written(
    tmp_path,
):
    def count(table, ids):
        table.upsert(ids, tf.zeros([tf.size(ids), 2]))
        return {"n": table.size()}

    model = _model(count)
    tf.saved_model.save(
        model, tmp_path / "ours", signatures={"count": model.serve}
    )

    with pytest.raises(
        errors.UnsupportedError, match="Signature 'count'.*Tfembed>Table"
    ):
        to_stock(tmp_path / "ours", tmp_path / "stock")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The folder of a SavedModel with one table, "user", and one input."""
    folder = tmp_path_factory.mktemp("small") / "ours"
    model = _model(lambda table, ids: {"rows": table.lookup(ids)[0]})
    tf.saved_model.save(model, folder, signatures={"serve": model.serve})
    return folder


@pytest.mark.slow
def test_a_check_runs_both_models_in_processes_of_their_own(
    small, tmp_path, monkeypatch
):
    monkeypatch.setattr(check, "_run", fresh_process.output_of)
    np.savez(tmp_path / "inputs.npz", ids=np.array([1, 5]))

    report = to_stock(small, tmp_path / "stock", check=tmp_path / "inputs.npz")

    assert "check: 1 output of 'serve' equal bit for bit." in str(report)
    assert report.outputs[0].largest == 1


def test_inputs_of_a_check_warm_a_server_up(small, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "_outputs", lambda *_, **__: {})
    to_stock(small, tmp_path / "ranker" / "1", check={"ids": [1, 5]})

    path = tmp_path / "ranker/1/assets.extra/tf_serving_warmup_requests"
    (record,) = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    request = _prediction_log().FromString(record).predict_log.request
    spec = request.model_spec
    (given,) = request.inputs
    ids = tf.make_tensor_proto([1, 5], tf.int64)
    assert (spec.name, spec.signature_name) == ("ranker", "serve")
    assert given.key == "ids"
    assert given.value == ids.SerializeToString()


def _prediction_log():
    """The class of TensorFlow Serving's PredictionLog, tensors as bytes."""
    field = descriptor_pb2.FieldDescriptorProto
    kinds = {"string": field.TYPE_STRING, "bytes": field.TYPE_BYTES}
    file = descriptor_pb2.FileDescriptorProto(
        name="log.proto", package="of_test"
    )
    for message, fields in {
        "Spec": [("name", 1, "string"), ("signature_name", 3, "string")],
        "Pair": [("key", 1, "string"), ("value", 2, "bytes")],
        "Request": [("model_spec", 1, "Spec"), ("inputs", 2, "Pair")],
        "Predict": [("request", 1, "Request")],
        "Log": [("predict_log", 6, "Predict")],
    }.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            described.field.add(
                name=name,
                number=number,
                label=field.LABEL_REPEATED
                if kind == "Pair"
                else field.LABEL_OPTIONAL,
                type=kinds.get(kind, field.TYPE_MESSAGE),
                type_name=None if kind in kinds else f".of_test.{kind}",
            )
    return message_factory.GetMessages([file])["of_test.Log"]


@pytest.mark.parametrize(
    "given, text",
    [
        (
            {"id": [1]},
            "inputs ['id'], which are those of no signature: 'serve'",
        ),
        ({}, "must be a dict of inputs"),
        ({"ids": ["one"]}, "must have int64 for input 'ids' of 'serve'"),
        ({"ids": [1.5]}, "must have int64 for input 'ids' of 'serve'"),
        ({"ids": [[1]]}, "must have the shape (None,) for input 'ids'"),
        ("nothing.npz", "cannot be read: 'nothing.npz'"),
    ],
    ids=["name", "none", "text", "float", "rank", "file"],
)
def test_inputs_that_no_signature_has_are_refused_first(
    small, tmp_path, given, text
):
    with pytest.raises(errors.TfembedError, match=re.escape(text)):
        to_stock(small, tmp_path / "stock", check=given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "rows, is_equal",
    [([1, 1 + 5e-6], True), ([1, 1.1], False), ([1, np.nan], False)],
    ids=["rounding", "other", "nan"],
)
def test_outputs_that_differ_by_more_than_rounding_leave_no_model(
    small, tmp_path, monkeypatch, rows, is_equal
):
    monkeypatch.setattr(
        check,
        "_outputs",
        lambda model, folder, tags, with_tfembed: {
            ("serve", "rows"): np.array([1.0, 1] if with_tfembed else rows)
        },
    )

    if is_equal:
        report = to_stock(small, tmp_path / "stock", check={"ids": [1]})
        assert "'rows' of 'serve' differs by 5e-06 at most" in str(report)
        return
    with pytest.raises(errors.UnsupportedError, match="'rows' of .*'serve'"):
        to_stock(small, tmp_path / "stock", check={"ids": [1]})
    assert not list(tmp_path.iterdir())


def test_the_command_exports_and_prints_the_report(small, tmp_path, capsys):
    arguments = ["export", str(small), str(tmp_path / "stock")]

    statuses = [main(arguments), main(arguments)]

    out, err = capsys.readouterr()
    assert statuses == [0, 2]
    assert "user   2     int64  8 B" in out
    assert "is there already" in err
    stock = tf.saved_model.load(tmp_path / "stock")
    rows = stock.serve(tf.constant([1], tf.int64))["rows"]
    np.testing.assert_array_equal(rows, [[1, 1]])


def test_the_command_prints_the_report_for_programs(small, tmp_path, capsys):
    assert main(["export", str(small), str(tmp_path / "s"), "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    (table,) = answer["tables"]
    assert (table["name"], table["num_rows"], table["row_bytes"]) == (
        *("user", 2, 8),
    )
    page = (DOCS / "formats" / "answers.md").read_text()
    outputs = [field.name for field in dataclasses.fields(OutputReport)]
    for key in (*answer, *table, *outputs):
        assert f"`{key}`" in page


def test_a_target_that_is_there_is_refused(tmp_path):
    (tmp_path / "stock").mkdir()

    with pytest.raises(errors.ArgumentError, match="is there already"):
        to_stock(tmp_path / "ours", tmp_path / "stock")


def test_a_folder_without_a_model_or_a_table_is_refused(tmp_path):
    tf.saved_model.save(tf.Module(), tmp_path / "empty")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "saved_model.pb").write_bytes(b"\xff\xff")

    for source, text in (
        ("nothing", "is no SavedModel"),
        ("damaged", "is damaged"),
        ("empty", "has no hash table"),
    ):
        with pytest.raises(errors.TfembedError, match=text):
            to_stock(tmp_path / source, tmp_path / "stock")
    assert not (tmp_path / "stock").exists()


def test_rows_that_are_damaged_are_refused_and_leave_nothing(small, tmp_path):
    shutil.copytree(small, tmp_path / "ours")
    for data in (tmp_path / "ours" / "variables").glob("*.data-*"):
        data.write_bytes(bytes(len(data.read_bytes())))

    with pytest.raises(errors.CheckpointError):
        to_stock(tmp_path / "ours", tmp_path / "stock")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
