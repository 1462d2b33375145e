"""`get_variable`: variables found again by name."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de


def test_the_same_name_finds_the_same_variable():
    first = de.get_variable("store/same", dim=3)
    assert de.get_variable("store/same", dim=3) is first
    assert de.get_variable("store/other", dim=3) is not first


def test_a_scope_counts_as_part_of_the_name():
    with tf.compat.v1.variable_scope("outer"):
        inside = de.get_variable("store/scoped")
        short = de.get_variable("store/short", short_file_name=True)
    assert inside.name == "outer/store/scoped"
    assert short.name == "store/short"
    assert de.get_variable("store/short") is short
    assert de.get_variable("store/scoped") is not inside


def test_a_scope_without_reuse_refuses_a_name_that_is_there():
    de.get_variable("embedding/t900")
    with (
        tf.Graph().as_default(),
        tf.compat.v1.variable_scope("embedding", reuse=False),
        pytest.raises(
            ValueError, match="Variable embedding/t900 already exists"
        ),
    ):
        de.get_variable("t900")


def test_another_width_is_refused():
    de.get_variable("store/narrow", dim=3)
    with pytest.raises(ValueError, match="exists with dim=3; got dim=4"):
        de.get_variable("store/narrow", dim=4)


def test_other_dtypes_are_refused_for_a_name_that_is_there():
    de.get_variable("store/dtypes")
    with pytest.raises(TypeError, match="int64-float32"):
        de.get_variable("store/dtypes", tf.int32)
