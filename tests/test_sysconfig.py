"""A server without Python's tfembed serves by the library of get_lib.

A session that loads a SavedModel does what TensorFlow's C++ loader does.
"""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

import fresh_process
import tfembed
from tfembed.ops import library


def test_a_saved_model_is_served_by_the_library_alone(tmp_path):
    table = tfembed.dynamic_embedding.Variable(dim=2, initializer=0.5)
    table.upsert([7], [[1.0, 2.0]])
    module = tf.Module()
    module.table = table
    module.serve = tf.function(
        lambda ids: tfembed.dynamic_embedding.embedding_lookup(table, ids),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )
    tf.saved_model.save(
        module, str(tmp_path), signatures=module.serve.get_concrete_function()
    )

    result = fresh_process.run(
        "import sys\n"
        "import tensorflow as tf\n"
        f"tf.load_op_library({tfembed.sysconfig.get_lib()!r})\n"
        "v1 = tf.compat.v1\n"
        "with v1.Session(graph=tf.Graph()) as session:\n"
        f"  model = v1.saved_model.load(session, ['serve'], {str(tmp_path)!r})\n"
        "  signature = model.signature_def['serving_default']\n"
        "  rows, = signature.outputs.values()\n"
        "  ids, = signature.inputs.values()\n"
        "  found = session.run(rows.name, {ids.name: [7, 8]})\n"
        "assert 'tfembed' not in sys.modules\n"
        "print(found.tolist())\n"
    )

    assert result.stdout.strip() == "[[1.0, 2.0], [0.5, 0.5]]", result.stderr


def test_the_sealed_library_needs_no_library_of_tensorflow():
    elffile = pytest.importorskip("elftools.elf.elffile")
    with pathlib.Path(tfembed.sysconfig.get_sealed_lib()).open("rb") as file:
        tags = list(
            elffile.ELFFile(file).get_section_by_name(".dynamic").iter_tags()
        )
    needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}

    assert {name.split(".")[0] for name in needed} <= {
        *("libc", "libm", "libstdc++", "libgcc_s", "libpthread"),
        "ld-linux-x86-64",
    }


def test_the_version_is_that_of_the_running_tensorflow():
    built = tfembed.sysconfig.get_tensorflow_version()

    assert built.split(".")[:2] == tf.__version__.split(".")[:2]


def test_missing_xla_kernels_are_an_error_that_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "XLA_LIBRARY", tmp_path / "_tfembed_xla.so")

    with pytest.raises(tfembed.errors.LibraryError, match="not all headers"):
        tfembed.sysconfig.get_xla_lib()
