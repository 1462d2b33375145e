"""Training of rows of float16 and bfloat16: rules, rounding, chance."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from oracle.updates import apply_rule
from tfembed import errors, optimizers, policies
from tfembed.tables import HashTable

DIM = 6
HALVES = {tf.float16: np.float16, tf.bfloat16: ml_dtypes.bfloat16}
RULES = {
    "sgd": optimizers.SGD(0.1, weight_decay_factor=0.01),
    "adagrad": optimizers.Adagrad(0.1),
    "adagrad_momentum": optimizers.AdagradMomentum(0.1),
    "adam": optimizers.Adam(0.1),
    "ftrl": optimizers.FTRL(0.1, l1_regularization_strength=0.01),
}


@pytest.fixture(params=HALVES, ids=lambda dtype: dtype.name)
def half(request):
    return request.param


def table_of(dtype, num_shards=1, dim=DIM, **options):
    options = {"name": "t", "initializer": 1.0, "seed": 5, **options}
    return HashTable(
        dim, value_dtype=dtype, devices=["/CPU:0"] * num_shards, **options
    )


def parameters_of(optimizer):
    pairs = (pair.split("=") for pair in optimizer.rule_text().split()[1:])
    return {name: float(value) for name, value in pairs}


def assert_rounded(actual, expected, half, allowed):
    """`actual` is a half to which a number near `expected` is rounded."""
    low, high = expected - allowed, expected + allowed
    actual = actual.astype(np.float64)
    assert np.all(actual >= low.astype(HALVES[half]).astype(np.float64))
    assert np.all(actual <= high.astype(HALVES[half]).astype(np.float64))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num_shards", [1, 2])
def test_rules_move_rows_of_halves_and_slots_of_floats(half, rule, num_shards):
    draw = np.random.default_rng(3)
    table = table_of(half, num_shards)
    optimizer = RULES[rule]
    table.attach(optimizer)
    keys = np.arange(50)
    table.upsert(keys, tf.cast(draw.normal(size=[50, DIM]), half))
    for _ in range(4):
        ids = draw.integers(0, 70, 200)
        gradients = draw.normal(size=[200, DIM]).astype(np.float32)
        every = np.unique(ids)
        before = table.lookup_trained(every).numpy().astype(np.float64)
        table.apply_gradients(ids, gradients)
        after = table.lookup_trained(every).numpy()
        for row, new_row, key in zip(before, after, every, strict=True):
            value, *slots = np.split(row, 1 + len(optimizer.slot_names))
            new_value, *new_slots = np.split(new_row, 1 + len(slots))
            sums = gradients[ids == key].astype(np.float64).sum(0)
            expected, expected_slots = apply_rule(
                rule, value, slots, sums, 0.1, parameters_of(optimizer)
            )
            allowed = 1e-4 * expected.size + 1e-6
            assert_rounded(new_value, expected.value, half, allowed)
            for slot, wanted in zip(new_slots, expected_slots, strict=True):
                limit = 1e-4 * wanted.size + 1e-6
                assert np.all(np.abs(slot - wanted.value) <= limit)


@pytest.mark.parametrize("stochastic", [False, True])
def test_occurrences_that_are_not_summed_are_rounded_one_by_one(
    half, stochastic
):
    table = table_of(half, stochastic_rounding=stochastic, dim=256)
    table.attach(optimizers.SGD(1.0, use_gradient_accumulation=False))
    tiny = float(ml_dtypes.finfo(HALVES[half]).eps) / 8

    table.apply_gradients([7] * 80, np.full([80, 256], -tiny, np.float32))

    # 10 last places in all, of which rounding to the nearest sees none.
    row = table.lookup([7])[0].numpy().astype(np.float64)
    moved = (row - 1) / (8 * tiny)
    if stochastic:
        assert abs(moved.mean() - 10) < 5 * np.sqrt(80 * 7 / 64 / 256)
        assert len(np.unique(moved)) > 3
    else:
        np.testing.assert_array_equal(moved, 0)


@pytest.mark.parametrize("share", [0.125, 0.5, 0.8125])
def test_chance_rounds_up_as_often_as_the_mean_asks(half, share):
    n, dim = 3000, 33
    table = table_of(half, dim=dim, stochastic_rounding=True)
    table.attach(optimizers.SGD(1.0))
    step = float(ml_dtypes.finfo(HALVES[half]).eps)

    table.apply_gradients(
        np.arange(n), np.full([n, dim], -share * step, np.float32)
    )

    rows = table.lookup(np.arange(n))[0].numpy().astype(np.float64)
    ups = (rows - 1) / step
    assert set(np.unique(ups)) == {0, 1}
    deviation = np.sqrt(share * (1 - share))
    assert abs(ups.mean() - share) < 4 * deviation / np.sqrt(n * dim)
    # No key and no column is favoured.
    assert np.all(np.abs(ups.mean(0) - share) < 5 * deviation / np.sqrt(n))
    assert np.all(np.abs(ups.mean(1) - share) < 6 * deviation / np.sqrt(dim))


def test_steps_keys_and_columns_have_chances_of_their_own(half):
    table = table_of(half, dim=4000, stochastic_rounding=True)
    table.attach(optimizers.SGD(1.0))
    step = float(ml_dtypes.finfo(HALVES[half]).eps)
    keys = [1, 2]
    ups = []
    for _ in range(2):
        table.upsert(keys, tf.ones([2, 4000], half))
        table.apply_gradients(keys, np.full([2, 4000], -step / 2, np.float32))
        ups += list(table.lookup(keys)[0].numpy() > 1)
    ups.append(np.roll(ups[0], 1))
    for i, one in enumerate(ups):
        for other in ups[:i]:
            assert abs((one == other).mean() - 0.5) < 5 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize("fused", [True, False])
def test_many_tiny_updates_move_a_row_by_chance_alone(half, fused):
    steps = 200
    tiny = float(ml_dtypes.finfo(HALVES[half]).eps) / 20
    moved = {}
    for stochastic in (True, False):
        table = table_of(half, dim=512, stochastic_rounding=stochastic)
        table.attach(optimizers.SGD(1.0))
        for _ in range(steps):
            if fused:
                table.apply_gradients([3], np.full([1, 512], -tiny, np.float32))
            else:
                keys = tf.constant([3], tf.int64)
                rows = table.lookup_trained(keys)
                table.write_trained(keys, rows + tiny)
        moved[stochastic] = table.lookup([3])[0].numpy().astype(float) - 1
    assert not moved[False].any()
    total = steps * tiny
    spread = np.sqrt(steps * (1 / 20) * (19 / 20) / 512) * 20 * tiny
    assert abs(moved[True].mean() - total) < 5 * spread


def test_differences_and_accum_are_rounded_by_chance_too(half):
    n = 4000
    step = float(ml_dtypes.finfo(HALVES[half]).eps)
    keys = tf.range(n, dtype=tf.int64)
    table = table_of(half, dim=1, stochastic_rounding=True)
    table.write_trained(keys, tf.fill([n, 1], step / 4), add=True)
    ups = (table.lookup(keys)[0].numpy().astype(float) - 1) / step
    assert set(np.unique(ups)) == {0, 1}
    assert abs(ups.mean() - 0.25) < 5 * np.sqrt(3 / 16 / n)

    table.upsert(keys, tf.ones([n, 1], half))
    table.accum(keys, tf.fill([n, 1], tf.cast(step / 4, half)), [True] * n)
    ups = (table.lookup(keys)[0].numpy().astype(float) - 1) / step
    assert set(np.unique(ups)) == {0, 1}
    assert abs(ups.mean() - 0.25) < 5 * np.sqrt(3 / 16 / n)


def test_chance_depends_on_seed_key_and_step_alone(half):
    draw = np.random.default_rng(8)
    keys = draw.permutation(3000)
    gradients = draw.normal(size=[3000, DIM]).astype(np.float32)

    def trained(num_shards, order, seed=5):
        table = table_of(half, num_shards, stochastic_rounding=True, seed=seed)
        table.attach(optimizers.Adagrad(1e-3))
        for _ in range(3):
            table.apply_gradients(keys[order], gradients[order])
        return table.lookup(keys)[0].numpy().astype(np.float64)

    rows = trained(1, np.arange(3000))
    np.testing.assert_array_equal(rows, trained(3, np.argsort(keys)))
    assert (rows != trained(1, np.arange(3000), seed=6)).mean() > 0.1


def test_rows_that_do_not_change_are_not_rounded(half):
    draw = np.random.default_rng(1)
    table = table_of(half, stochastic_rounding=True)
    values = tf.cast(draw.normal(size=[100, DIM]), half)
    keys = tf.range(100, dtype=tf.int64)
    table.upsert(keys, values)
    table.write_trained(keys, table.lookup_trained(keys))
    table.write_trained(keys, tf.zeros([100, DIM]), add=True)
    np.testing.assert_array_equal(table.lookup(keys)[0], values)


def test_keys_that_are_not_admitted_leave_the_others_their_chance(half):
    """The rest of a block after refusals is rounded by its own keys."""
    step = float(ml_dtypes.finfo(HALVES[half]).eps)
    keys = np.arange(2000)
    rows = []
    for admission in (None, policies.CountAdmission(2)):
        table = table_of(half, stochastic_rounding=True, admission=admission)
        table.attach(optimizers.SGD(1.0))
        table.upsert(keys[::2], tf.ones([1000, DIM], half))
        gradients = np.full([2000, DIM], -step / 2, np.float32)
        table.apply_gradients(keys, gradients)
        assert int(table.size()) == (1000 if admission else 2000)
        rows.append(table.lookup(keys[::2])[0].numpy().astype(float))
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int8])
def test_chance_is_refused_where_nothing_is_rounded(dtype):
    with pytest.raises(errors.ArgumentError, match="float16 or bfloat16.*'t'"):
        table_of(dtype, stochastic_rounding=True)


def test_chance_is_true_or_false(half):
    with pytest.raises(errors.ArgumentError, match="must be True or False"):
        table_of(half, stochastic_rounding="yes")


def test_a_checkpoint_brings_rows_slots_and_training_back(half, tmp_path):
    def made():
        table = table_of(half, stochastic_rounding=True)
        table.attach(optimizers.Adam(0.1))
        return table

    saved = made()
    saved.apply_gradients(np.arange(9), np.ones([9, DIM], np.float32))
    path = tf.train.Checkpoint(table=saved).save(tmp_path / "c")
    restored = made()
    tf.train.Checkpoint(table=restored).restore(path).assert_consumed()
    for table in (saved, restored):
        np.testing.assert_array_equal(
            table.lookup_trained(range(9)), saved.lookup_trained(range(9))
        )
    restored.apply_gradients(np.arange(9), np.ones([9, DIM], np.float32))
    assert np.all(restored.lookup([0])[0] < saved.lookup([0])[0])
