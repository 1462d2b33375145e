"""Stock models are held against TensorFlow 2.13: ops, attributes and dtypes."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, op_def_pb2
from tensorflow.python.client import pywrap_tf_session

import tfembed
from tfembed import errors
from tfembed.export import oldest_tensorflow as oldest
from tfembed.export import to_stock

# The ops of TensorFlow 2.13.1 that `tf.raw_ops` of later versions has too, with
# their attributes and the dtypes that these take, a line an op.
_DIGEST = "f45200e0bd0831bd"
_GONE = "TfLiteSubgraphExecute"  # 2.20 has no such op.


def _installed():
    """The public ops of the installed TensorFlow."""
    buffer = pywrap_tf_session.TF_GetAllOpList()
    ops = op_def_pb2.OpList()
    ops.ParseFromString(pywrap_tf_session.TF_GetBuffer(buffer))
    names = {name for name in dir(tf.raw_ops) if name[0] != "_"} - {_GONE}
    return [op for op in ops.op if op.name in names]


def _node(op, **attributes):
    node = node_def_pb2.NodeDef(name="n", op=op)
    for name, value in attributes.items():
        kind = {bool: "b", bytes: "s", tf.DType: "type"}[type(value)]
        value = value.as_datatype_enum if kind == "type" else value
        setattr(node.attr[name], kind, value)
    return node


def test_the_installed_tensorflow_less_the_tables_is_version_2_13():
    lines = []
    for op in _installed():
        if oldest.obstacle_of_node(_node(op.name)) and "PyFunc" not in op.name:
            continue
        kept = []
        for attribute in op.attr:
            if attribute.name in oldest.newer_attributes(op.name):
                continue
            lost = oldest.lost_dtypes(op.name, attribute.name)
            taken = sorted(attribute.allowed_values.list.type)
            dtypes = [n for n in taken if tf.as_dtype(n).name not in lost]
            kept.append(f"{attribute.name}{dtypes}")
        lines.append(f"{op.name} {sorted(kept)}")

    text = "\n".join(sorted(lines))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == _DIGEST


@pytest.mark.parametrize(
    "node, text",
    [
        (_node("RFFTND"), "the op RFFTND, of TensorFlow 2.16, not 2.13"),
        (_node("XlaSparseCoreAdam"), "op XlaSparseCoreAdam, of TensorFlow"),
        (_node("Wordpieces"), "Wordpieces, which TensorFlow alone does not"),
        (_node("EagerPyFunc"), "EagerPyFunc 'n' runs Python"),
        (_node("GatherNd", bad_indices_policy=b"IGNORE"), "bad_indices_policy"),
        (_node("ConcatOffset", shape_type=tf.int64), "has `shape_type`"),
        (_node("Range", Tidx=tf.uint64), "Range 'n' is of uint64"),
    ],
    ids=lambda x: getattr(x, "op", ""),
)
def test_a_node_that_2_13_does_not_run_is_named(node, text):
    assert text in oldest.obstacle_of_node(node)


def test_attributes_that_2_13_does_without_are_left_out():
    for node in (
        _node("MatMul", grad_a=True),
        _node("VarHandleOp", debug_name=b"weight"),
        _node("GatherNd", bad_indices_policy=b""),
        _node("ConcatOffset", shape_type=tf.int32),
        _node("Range", Tidx=tf.int32),
    ):
        is_new = node.op != "Range"
        assert oldest.obstacle_of_node(node) is None
        oldest.drop_hints(node)
        assert bool(node.attr) != is_new


def test_a_signature_that_runs_python_is_refused_and_a_function_left_out(
    tmp_path,
):
    model = tf.Module()
    model.table = tfembed.HashTable(2, name="user")
    model.table.upsert([1], np.ones([1, 2]))
    spec = [tf.TensorSpec([None], tf.int64, "ids")]

    def python(ids):
        return tf.numpy_function(np.sort, [ids], tf.int64)

    model.sort = tf.function(python, input_signature=spec)
    model.serve = tf.function(
        lambda ids: model.table.lookup(ids)[0], input_signature=spec
    )
    tf.saved_model.save(model, tmp_path / "ours", signatures=model.serve)
    tf.saved_model.save(model, tmp_path / "other", signatures=model.sort)

    report = to_stock(tmp_path / "ours", tmp_path / "stock")

    assert "runs Python" in report.left_out["sort"]
    text = (tmp_path / "stock" / "saved_model.pb").read_bytes()
    assert b"bad_indices_policy" not in text
    with pytest.raises(errors.UnsupportedError, match="PyFunc.* runs Python"):
        to_stock(tmp_path / "other", tmp_path / "none")
    assert not (tmp_path / "none").exists()
