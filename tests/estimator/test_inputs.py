"""input_fns over arrays and DataFrames."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors, estimator

v1 = tf.compat.v1
inputs = estimator.inputs


def batches(input_fn, count=None):
    """What an input_fn gives until it ends, or so many batches."""
    found = []
    with tf.Graph().as_default():
        batch = input_fn()
        with v1.Session() as session:
            while count is None or len(found) < count:
                try:
                    found.append(session.run(batch))
                except tf.errors.OutOfRangeError:
                    break
    return found


def test_batches_go_on_over_the_end_of_an_epoch():
    x, y = np.arange(5), np.arange(5.0) * 10
    found = batches(
        inputs.numpy_input_fn(
            {"x": x}, y, batch_size=3, num_epochs=2, shuffle=False
        )
    )

    assert [list(features["x"]) for features, _ in found] == [
        [0, 1, 2],
        [3, 4, 0],
        [1, 2, 3],
        [4],
    ]
    assert [list(labels) for _, labels in found][-1] == [40.0]


def test_without_an_end_batches_are_full():
    input_fn = inputs.numpy_input_fn(
        np.ones([4, 2]), batch_size=3, num_epochs=None, shuffle=True
    )

    with tf.Graph().as_default():
        assert input_fn().shape.as_list() == [3, 2]
    assert len(batches(input_fn, count=5)) == 5


def test_shuffled_examples_keep_their_labels_and_all_come():
    x = np.arange(40)
    found = batches(
        inputs.numpy_input_fn(
            x, {"y": x * 2, "z": x * 3}, batch_size=7, shuffle=True
        )
    )

    order = np.concatenate([features for features, _ in found])
    assert sorted(order) == list(x)
    assert list(order) != list(x)
    np.testing.assert_array_equal(
        np.concatenate([labels["z"] for _, labels in found]), order * 3
    )


def test_strings_are_features_too():
    found = batches(
        inputs.numpy_input_fn(
            {"word": np.array(["a", "bc"])}, batch_size=2, shuffle=False
        )
    )

    assert list(found[0]["word"]) == [b"a", b"bc"]


def test_the_graph_holds_no_arrays():
    input_fn = inputs.numpy_input_fn(
        np.zeros([10**6, 4], np.float32), batch_size=2, shuffle=True
    )

    with tf.Graph().as_default() as graph:
        input_fn()
        assert graph.as_graph_def().ByteSize() < 10**5


@pytest.mark.parametrize(
    ("x", "y", "error", "text"),
    [
        ([1, 2], None, errors.DtypeError, "must be a dict or array; got list"),
        ({}, None, errors.ArgumentError, "x cannot be an empty dict"),
        (np.array([]), None, errors.ArgumentError, "an empty array"),
        (np.ones(2), {}, errors.ArgumentError, "use None instead"),
        (
            {"a": np.ones(2)},
            {"a": np.ones(2)},
            errors.ArgumentError,
            r"1 duplicate keys.*\['a'\]",
        ),
        (
            {"a": np.ones(2)},
            np.ones(3),
            errors.ArgumentError,
            "mismatched",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(x, y, error, text):
    input_fn = inputs.numpy_input_fn(x, y, shuffle=False)

    with tf.Graph().as_default(), pytest.raises(error, match=text):
        input_fn()


def test_shuffle_must_be_given():
    with pytest.raises(errors.ArgumentError, match="shuffle must be provided"):
        inputs.numpy_input_fn(np.ones(2))
    with pytest.raises(errors.ArgumentError, match="shuffle must be provided"):
        inputs.pandas_input_fn(None)


def test_what_is_no_data_frame_is_refused():
    with pytest.raises(errors.DtypeError, match="numpy_input_fn"):
        inputs.pandas_input_fn(np.ones(2), shuffle=False)


def test_columns_of_a_data_frame_are_features():
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    y = pd.Series([10.0, 20.0, 30.0])
    found = batches(inputs.pandas_input_fn(x, y, batch_size=2, shuffle=False))

    assert list(found[0][0]["a"]) == [1, 2]
    assert list(found[1][0]["b"]) == [b"z"]
    assert list(found[0][1]) == [10.0, 20.0]
    with pytest.raises(errors.ArgumentError, match="Index for x and y"):
        inputs.pandas_input_fn(x, y[1:], shuffle=False)
    with pytest.raises(errors.ArgumentError, match="Cannot use name a"):
        inputs.pandas_input_fn(x, y, shuffle=False, target_column="a")
