"""The exchange ops on one replica, against the oracle; multi-replica programs are
run by the TPU proof.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from embedding.marks import NEEDS_XLA
from oracle import Terms, apply_rule, assert_close
from tfembed import errors, optimizers
from tfembed.ops import exchange

pytestmark = NEEDS_XLA

ROWS, WIDTH, PLACES = 40, 5, 64
TABLES = (24, 16)
RULES = {
    "sgd": optimizers.SGD(0.1),
    "sgd_clipped": optimizers.SGD(
        0.1, clipvalue=0.5, clip_weight_min=-0.3, clip_weight_max=0.4
    ),
    "sgd_decay": optimizers.SGD(
        0.1,
        weight_decay_factor=0.2,
        multiply_weight_decay_factor_by_learning_rate=True,
    ),
    "adagrad": optimizers.Adagrad(0.1),
    "adagrad_decay": optimizers.Adagrad(0.1, weight_decay_factor=0.1),
    "adagrad_momentum": optimizers.AdagradMomentum(0.1, momentum=0.9),
    "adagrad_momentum_power": optimizers.AdagradMomentum(
        0.1, momentum=0.5, use_nesterov=True, exponent=3.0, beta2=0.9
    ),
    "adam": optimizers.Adam(0.1),
    "adam_outside": optimizers.Adam(0.1, sum_inside_sqrt=False),
    "ftrl": optimizers.FTRL(0.1, l1_regularization_strength=0.1, beta=0.2),
    "ftrl_power": optimizers.FTRL(
        0.1,
        learning_rate_power=-0.3,
        l2_regularization_strength=0.1,
        multiply_linear_by_learning_rate=True,
    ),
    "momentum": optimizers.Momentum(0.1, use_nesterov=True),
    "rms_prop": optimizers.RMSProp(0.1, momentum=0.5),
    "centered_rms_prop": optimizers.CenteredRMSProp(0.1, momentum=0.5),
    "proximal_adagrad": optimizers.ProximalAdagrad(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.1
    ),
    "adadelta": optimizers.Adadelta(0.1),
    "lion": optimizers.Lion(0.1),
    "yogi": optimizers.Yogi(0.1, l1_regularization_strength=0.01),
    "row_wise_adagrad": optimizers.RowWiseAdagrad(0.1, clipvalue=1.0),
}


def _case(rule, seed=0):
    """Rows, slots, ids with some of none and some out of range, gradients."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    slots = [
        rng.uniform(0.5, 1.5, rule.slot_shape(name, (ROWS, WIDTH))).astype(
            np.float32
        )
        for name in rule.slot_names
    ]
    ids = rng.integers(0, 20, PLACES).astype(np.int32)
    ids[::7], ids[3], ids[4] = -1, ROWS, 2**31 - 1
    # Of one sign in a row, so that the sums are well-posed.
    gradients = rng.uniform(0.2, 1.0, (PLACES, WIDTH)).astype(np.float32)
    gradients *= np.where(np.arange(WIDTH) % 2, 1, -1)
    return values, slots, ids, gradients.astype(np.float32)


def _update(rule, values, slots, ids, gradients, *, portable=False, **options):
    options = {"table_rows": TABLES, "nonfinite": "skip", **options}

    @tf.function(jit_compile=True)
    def run(values, slots, ids, gradients):
        found = exchange.update(
            values,
            slots,
            ids,
            gradients,
            rule.learning_rate,
            exchange.Exchange(1, len(ids), portable),
            rule=rule.rule_text(),
            **options,
        )
        return found.values, found.slots, found.rounds, found.nonfinite_rows

    values, slots, rounds, nonfinite = run(
        *map(tf.constant, (values,)),
        list(map(tf.constant, slots)),
        ids,
        gradients,
    )
    assert rounds == 1
    return values, slots, nonfinite.numpy().tolist()


def _expected(rule, values, slots, steps):
    """Rows and slots after (row, gradient) steps, one after another."""
    words = rule.rule_text().split()
    parameters = {k: float(v) for k, v in (w.split("=") for w in words[1:])}
    rows = [Terms.of(row) for row in values]
    state = [[Terms.of(slot[r]) for slot in slots] for r in range(len(values))]
    rate = float(np.float32(rule.learning_rate))
    for row, gradient in steps:
        rows[row], state[row] = apply_rule(
            words[0], rows[row], state[row], gradient, rate, parameters
        )
    return [rows, *([one[s] for one in state] for s in range(len(slots)))]


def _sums(ids, gradients, rows):
    sums = {row: Terms.of(np.zeros(WIDTH)) for row in rows}
    for row, gradient in zip(ids, gradients, strict=True):
        if 0 <= row < ROWS:
            sums[row] = sums[row] + Terms.of(gradient)
    return sums.items()


def _assert_close(actual, expected, what):
    assert_close(
        actual,
        Terms(
            np.stack([row.value for row in expected]),
            np.stack([row.size for row in expected]),
        ),
        what,
    )


def _touched(ids):
    return sorted({int(i) for i in ids if 0 <= i < ROWS})


@pytest.mark.parametrize("ids_dtype", [np.int32])
def test_lookup_gives_zeros_where_there_is_no_row(ids_dtype):
    values, _, ids, _ = _case(RULES["sgd"])

    @tf.function(jit_compile=True)
    def run(values, ids):
        return exchange.lookup(
            values, ids, exchange.Exchange.for_ids(1, PLACES)
        ).rows

    inside = (ids >= 0) & (ids < ROWS)
    expected = np.where(inside[:, None], values[np.where(inside, ids, 0)], 0)
    np.testing.assert_array_equal(run(values, ids.astype(ids_dtype)), expected)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_update_applies_the_rule_once_to_the_sum_of_a_row(name, portable):
    rule = RULES[name]
    values, slots, ids, gradients = _case(rule)

    found, found_slots, nonfinite = _update(
        rule, values, slots, ids, gradients, portable=portable
    )

    expected = _expected(
        rule, values, slots, _sums(ids, gradients, _touched(ids))
    )
    _assert_close(found, expected[0], "values")
    for slot, of_slot in zip(found_slots, expected[1:], strict=True):
        _assert_close(slot, of_slot, "slot")
    assert nonfinite == [0, 0]


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("name", ["adagrad", "row_wise_adagrad"])
def test_update_without_accumulation_follows_the_occurrences(name, portable):
    rule = type(RULES[name])(0.1, use_gradient_accumulation=False)
    values, slots, ids, gradients = _case(rule)

    found, found_slots, _ = _update(
        rule, values, slots, ids, gradients, portable=portable
    )

    steps = [
        (int(row), gradient)
        for row, gradient in zip(ids, gradients, strict=True)
        if 0 <= row < ROWS
    ]
    expected = _expected(rule, values, slots, steps)
    _assert_close(found, expected[0], "values")
    _assert_close(found_slots[0], expected[1], "slot")


def test_update_of_a_rule_that_is_not_lazy_moves_all_rows():
    rule = optimizers.Adam(0.1, lazy_adam=False)
    values, slots, ids, gradients = _case(rule)

    found, found_slots, _ = _update(rule, values, slots, ids, gradients)

    expected = _expected(
        rule, values, slots, _sums(ids, gradients, range(ROWS))
    )
    _assert_close(found, expected[0], "values")
    for slot, of_slot in zip(found_slots, expected[1:], strict=True):
        _assert_close(slot, of_slot, "slot")


@pytest.mark.parametrize(
    "rule",
    [optimizers.Adagrad(0.1), optimizers.Adam(0.1, lazy_adam=False)],
    ids=["touched rows", "all rows"],
)
@pytest.mark.parametrize("portable", [False, True])
def test_rows_with_a_sum_that_is_not_finite_are_skipped_and_counted(
    rule, portable
):
    values, slots, _, gradients = _case(rule)
    ids = (np.arange(PLACES) % ROWS).astype(np.int32)
    gradients[2, 1] = np.nan
    gradients[30, 0] = np.inf  # A row of the second table.

    found, found_slots, nonfinite = _update(
        rule, values, slots, ids, gradients, portable=portable
    )

    assert nonfinite == [1, 1]
    for row in (2, 30):
        np.testing.assert_array_equal(found[row], values[row])
        np.testing.assert_array_equal(found_slots[0][row], slots[0][row])
    assert np.all(np.isfinite(found))
    assert np.any(found[3] != values[3])


def test_rows_with_a_sum_that_is_not_finite_are_moved_where_that_is_allowed():
    rule = optimizers.SGD(0.1)
    values, slots, ids, gradients = _case(rule)
    gradients[1] = np.nan

    found, _, nonfinite = _update(
        rule, values, slots, ids, gradients, nonfinite="allow"
    )

    assert nonfinite == [1, 0]
    assert np.all(np.isnan(found[ids[1]]))


def test_all_ids_equal_and_no_ids_at_all():
    rule = optimizers.Adagrad(0.1)
    values, slots, ids, gradients = _case(rule)

    found, _, _ = _update(rule, values, slots, np.full_like(ids, 7), gradients)
    untouched, _, _ = _update(
        rule, values, slots, np.full_like(ids, -1), gradients
    )

    expected = _expected(
        rule, values, slots, _sums([7] * PLACES, gradients, [7])
    )
    _assert_close(found, expected[0], "values")
    np.testing.assert_array_equal(untouched, values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table_rows": (24, 15)}, "`table_rows` must sum up to the 40 rows"),
        ({"slots": []}, "`adagrad` has 1 slots; got 0"),
        ({"slots": [np.zeros((ROWS, 1), "f")]}, "Slot `accumulators` must be"),
    ],
)
def test_arguments_that_do_not_fit_say_so(options, message):
    rule = RULES["adagrad"]
    values, slots, ids, gradients = _case(rule)
    slots = options.pop("slots", slots)

    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        _update(rule, values, slots, ids, gradients, **options)


def test_an_unknown_rule_is_refused_when_it_is_compiled():
    class Unknown:
        learning_rate = 0.1

        def rule_text(self):
            return "sgdd"

    values, slots, ids, gradients = _case(RULES["sgd"])

    with pytest.raises(tf.errors.InvalidArgumentError, match="Unknown update"):
        _update(Unknown(), values, slots, ids, gradients)


@pytest.mark.parametrize("fields", [(0, 1), (1, 0)])
def test_an_exchange_has_replicas_and_a_buffer(fields):
    with pytest.raises(errors.ArgumentError, match="must be at least 1"):
        exchange.Exchange(*fields)


@pytest.mark.parametrize(
    ("replicas", "ids", "buffer"), [(1, 100, 100), (4, 100, 48), (8, 3, 3)]
)
def test_the_default_buffer_fits_ids_that_spread(replicas, ids, buffer):
    assert exchange.default_buffer(replicas, ids) == buffer
