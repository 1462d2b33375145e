"""Restrict policies that users write."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de


class KeepEven(de.RestrictPolicy):
    """A policy of a user: odd keys go."""

    status = None

    def apply_update(self, ids):
        """Nothing is noted."""

    def apply_restriction(self, num_reserved, **kwargs):
        ids = self.variable.table.keys()
        self.variable.remove(tf.boolean_mask(ids, ids % 2 == 1))
        return num_reserved, kwargs


def test_users_may_write_policies():
    v = de.Variable(dim=2, restrict_policy=KeepEven)
    v.upsert(range(6), tf.ones([6, 2]))

    assert v.restrict(3, depth=2) == (3, {"depth": 2})
    assert set(v.export()[0].numpy()) == {0, 2, 4}


def test_a_policy_without_its_methods_cannot_be_used():
    with pytest.raises(TypeError, match="abstract"):
        de.Variable(restrict_policy=de.RestrictPolicy)
