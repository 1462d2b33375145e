"""`get_variable`: variables found again by name."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de


def test_row_47_the_same_name_finds_the_same_variable():
    first = de.get_variable("store/same", dim=3)
    assert de.get_variable("store/same", dim=3) is first
    assert de.get_variable("store/other", dim=3) is not first
    with tf.compat.v1.variable_scope("store", reuse=True):
        assert de.get_variable("same", dim=3) is first


def test_a_scope_counts_as_part_of_the_name():
    with tf.compat.v1.variable_scope("outer"):
        inside = de.get_variable("store/scoped")
        short = de.get_variable("store/short", short_file_name=True)
    assert inside.name == "outer/store/scoped"
    assert short.name == "store/short"
    assert de.get_variable("store/short") is short
    assert de.get_variable("store/scoped") is not inside


def test_a_function_finds_the_variable_in_every_trace():
    @tf.function
    def size(keys):
        return de.get_variable("store/traced").lookup(keys)

    v = de.get_variable("store/traced", initializer=2.0)
    for n in (1, 2):
        keys = tf.zeros([n], tf.int64)
        assert (size(keys).numpy() == v.lookup(keys).numpy()).all()


def test_row_49_another_width_is_refused():
    de.get_variable("store/narrow", dim=3)
    with pytest.raises(ValueError, match="exists with dim=3; got dim=4"):
        de.get_variable("store/narrow", dim=4)


def test_other_dtypes_are_refused_for_a_name_that_is_there():
    de.get_variable("store/dtypes")
    with pytest.raises(TypeError, match="int64-float32"):
        de.get_variable("store/dtypes", tf.int32)
