"""Every way of recording a gradient, by every kind of table.

The kind of fault: a table that is not trained, without a word. Each cell is right,
as a dense variable under the same way is, or raises what to do instead.
HYPOTHESIS_PROFILE=full runs all cells. docs/gradients.md is made of `REFUSALS`.
"""

from __future__ import annotations

import functools
import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradients import matrix
from gradients.tables import KINDS, ROWS, Dense, DenseRows
from gradients.ways import WAYS

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "gradients.md"
# The kinds of which each way is run always.
EVERY_WAY = (("embedding_lookup", "eager"), ("TPUEmbedding", "eager"))
IS_FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"


@pytest.fixture(autouse=True)
def _no_caching_device():
    """Takes back what an exception in a loop leaves behind.

    `tf.map_fn` and `tf.scan` give the variable scope a caching device, and take
    it back at their end only. Eager variables are refused under one.
    """
    yield
    tf.compat.v1.get_variable_scope()._caching_device = None


def trained(make, way, mode):
    """The rows after two steps."""
    table = make()

    def step():
        WAYS[way](table)
        return tf.constant(0)

    run = tf.function(step) if mode == "function" else step
    run()
    run()
    return table.rows()


@functools.cache
def expected(takes_rows, way, mode):
    rows = trained(DenseRows if takes_rows else Dense, way, mode)
    moved = np.abs(rows - ROWS).max()
    assert moved == 0 if way in matrix.AT_REST else moved > 1e-3
    return rows


def cells():
    found = [
        (way, kind, mode)
        for way in WAYS
        for kind in KINDS
        for mode in matrix.modes(way)
    ]
    if IS_FULL:
        return found
    return [
        cell
        for i, cell in enumerate(found)
        if i % 13 == 0 or cell[1:] in EVERY_WAY
    ]


@pytest.mark.parametrize(("way", "kind", "mode"), cells())
def test_a_table_trains_as_a_dense_variable_or_says_what_to_do(way, kind, mode):
    if way == "keras.RematScope" and not hasattr(keras, "RematScope"):
        pytest.skip("This Keras has none.")
    refusal = matrix.refusal(way, kind, mode)
    if refusal is None:
        takes_rows = matrix.takes_rows(kind)
        found = trained(KINDS[kind], way, mode)
        like = matrix.SAME_AS.get((way, kind), way)
        if takes_rows and "without `variables`" in way:
            like = "tape"  # TensorFlow refuses the dense variable there.
        wanted = expected(takes_rows, like, mode)
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
    else:
        # AutoGraph raises some as a StagingError.
        with pytest.raises(Exception, match=refusal.match):
            trained(KINDS[kind], way, mode)


def test_the_page_has_all_kinds_of_tables():
    listed = [kind for kinds in matrix.COLUMNS.values() for kind in kinds]
    assert sorted(listed) == sorted(KINDS)


def test_the_page_of_gradients_is_what_the_matrix_says():
    assert PAGE.read_text() == matrix.page(), (
        "docs/gradients.md is not what tests/gradients/matrix.py says. Write it:"
        " PYTHONPATH=.:tests python -m gradients.matrix"
    )
