"""Legacy optimizers of tf_keras once wrapped: what is read, set and copied."""

from __future__ import annotations

import copy

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from dynamic_embedding.optimizer_makers import legacy
from dynamic_embedding.plain_sgd import wrapped

tf_keras = pytest.importorskip("tf_keras")
L = legacy()
DIM = 2


def gradient():
    return tf.IndexedSlices(
        tf.ones([3, DIM]), tf.constant([7, -1, 10**12], tf.int64)
    )


def test_numbers_that_are_set_after_wrapping_are_refused_where_fused():
    table = de.Variable(dim=DIM)
    step = [(gradient(), table)]
    optimizer = wrapped(L.Adam(0.1))
    optimizer.beta_1 = 0.9
    optimizer.apply_gradients(step)
    optimizer.beta_1 = 0.5
    with pytest.raises(RuntimeError, match=r"'beta_1': 0\.5"):
        optimizer.apply_gradients(step)
    assert int(optimizer.iterations) == 1


def test_numbers_that_a_checkpoint_restores_are_refused_where_fused(tmp_path):
    path = tf.train.Checkpoint(o=wrapped(L.Adam(0.1))).save(tmp_path / "c")
    optimizer, table = wrapped(L.Adam(0.1, beta_2=0.5)), de.Variable(dim=DIM)
    tf.train.Checkpoint(o=optimizer).restore(path)
    with pytest.raises(RuntimeError, match=r"'beta_2': 0\.999"):
        optimizer.apply_gradients([(gradient(), table)])


@pytest.mark.parametrize("kind", [L.Adam, L.Nadam, tf_keras.optimizers.Adam])
def test_options_are_read_and_copied_as_the_optimizers_own(kind):
    optimizer = wrapped(kind(0.1, 0.8, clipnorm=0.5), nonfinite="refuse")
    optimizer.clipvalue = 0.25
    if kind is L.Adam:
        optimizer.decay = 1.0
        optimizer.iterations.assign(1)
        assert float(optimizer._decayed_lr(tf.float64)) == pytest.approx(0.1)
    config = optimizer.get_config()
    again = type(optimizer).from_config(config)
    assert type(again.inner_optimizer) is kind
    for each in (optimizer, again):
        assert each.clipnorm == each.inner_optimizer.clipnorm == 0.5
        assert each.clipvalue == each.inner_optimizer.clipvalue == 0.25
        assert each.global_clipnorm is None
        assert each.get_config() == config


@pytest.mark.parametrize("make", [L.Adam, L.Nadam, L.RMSprop])
def test_a_copy_goes_on_by_itself(make):
    table, other = (de.Variable(dim=DIM, initializer=1.0) for _ in range(2))
    optimizer = wrapped(make(0.1))
    optimizer.apply_gradients([(gradient(), table)])
    copied = copy.deepcopy(optimizer)
    copied.learning_rate = 0.2
    copied.apply_gradients([(gradient(), other)])
    assert float(optimizer.learning_rate) == pytest.approx(0.1)
    assert (int(optimizer.iterations), int(copied.iterations)) == (1, 2)
    assert int(other.size()) == 3
