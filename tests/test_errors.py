"""The exception tree."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfembed import errors

TREE = {
    errors.ArgumentError: ValueError,
    errors.MissingTableError: KeyError,
    errors.DtypeError: TypeError,
    errors.StateError: RuntimeError,
    errors.StoppedError: RuntimeError,
    errors.UnsupportedError: NotImplementedError,
    errors.CheckpointError: ValueError,
    errors.LibraryError: ImportError,
}


@pytest.mark.parametrize("error", TREE, ids=lambda e: e.__name__)
def test_an_error_is_the_builtin_one_too(error):
    with pytest.raises(TREE[error], match="the text") as caught:
        raise error("the text")
    assert isinstance(caught.value, errors.TfembedError)


@pytest.mark.parametrize("error", TREE, ids=lambda e: e.__name__)
def test_an_error_in_traced_code_keeps_its_type(error):
    @tf.function
    def traced():
        raise error("the text")

    with pytest.raises(error, match="the text"):
        traced()


@pytest.mark.parametrize(("line", "where"), [(7, "a/b:7: "), (None, "a/b: ")])
def test_a_data_error_begins_with_its_place(line, where):
    error = errors.DataError("the text", path="a/b", line=line)
    assert str(error) == f"{where}the text"
    assert isinstance(error, ValueError)
    assert (error.path, error.line) == ("a/b", line)


def test_every_error_stands_in_the_tree_at_the_files_head():
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TfembedError)
    ]
    assert all(name in errors.__doc__ for name in classes)
