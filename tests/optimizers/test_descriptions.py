"""The descriptions of update rules: arguments, equality, text, translation."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
import tensorflow as tf

from tfembed import errors, optimizers

THEIRS = tf.tpu.experimental.embedding
NAMES = ["SGD", "Adagrad", "AdagradMomentum", "Adam", "FTRL"]

NOT_ALLOWED = [
    (
        "SGD",
        {"use_gradient_accumulation": False, "clipvalue": 1.0},
        "clipvalue",
    ),
    ("SGD", {"learning_rate": "fast"}, "learning_rate"),
    ("SGD", {"clipvalue": (1.0,)}, "clipvalue"),
    ("SGD", {"clipvalue": "hard"}, "clipvalue"),
    ("Adagrad", {"initial_accumulator_value": 0.0}, "accumulator.*0.0"),
    ("Adagrad", {"slot_variable_creation_fn": 3}, "slot_variable_creation_fn"),
    ("AdagradMomentum", {"epsilon": 0.0}, "epsilon"),
    ("AdagradMomentum", {"exponent": -1}, "exponent.*-1"),
    ("Adam", {"beta_1": 1.0}, "beta_1.*1.0"),
    ("Adam", {"beta_2": -0.5}, r"beta_2 .*-0\.5"),
    ("Adam", {"epsilon": 0.0}, "epsilon"),
    (
        "Adam",
        {"lazy_adam": False, "use_gradient_accumulation": False},
        "lazy_adam.*got False for both",
    ),
    (
        "Lion",
        {"lazy_lion": False, "use_gradient_accumulation": False},
        "lazy_lion.*got False for both",
    ),
    ("RowWiseAdagrad", {"epsilon": 0.0}, "epsilon"),
    ("RowWiseAdagrad", {"initial_accumulator_value": -1.0}, "accum.*-1.0"),
    ("FTRL", {"initial_accumulator_value": -1.0}, "accumulator.*-1.0"),
    ("Momentum", {"momentum": float("inf")}, "momentum.*inf"),
    ("Momentum", {"slot_variable_creation_fn": 3}, "slot_variable_creation_fn"),
    (
        "Momentum",
        {"use_gradient_accumulation": False, "clipvalue": 1.0},
        "clipvalue",
    ),
    ("RMSProp", {"rho": 1.0}, r"rho must be in \[0, 1\); got 1.0"),
    ("RMSProp", {"momentum": float("nan")}, "momentum.*nan"),
    ("RMSProp", {"epsilon": 0.0}, "epsilon"),
    ("CenteredRMSProp", {"rho": -0.5}, r"rho .*-0\.5"),
    ("CenteredRMSProp", {"momentum": float("inf")}, "momentum.*inf"),
    ("CenteredRMSProp", {"epsilon": -1.0}, "epsilon.*-1.0"),
    ("ProximalAdagrad", {"initial_accumulator_value": 0.0}, "accumul.*0.0"),
    ("ProximalAdagrad", {"l1_regularization_strength": -1.0}, "l1_.*-1.0"),
    ("ProximalAdagrad", {"l2_regularization_strength": -1.0}, "l2_.*-1.0"),
    ("Adadelta", {"rho": 2.0}, "rho.*2.0"),
    ("Adadelta", {"epsilon": 0.0}, "epsilon"),
    ("Lion", {"beta_1": 1.0}, "beta_1.*1.0"),
    ("Lion", {"beta_2": -1.0}, "beta_2.*-1.0"),
    ("Yogi", {"beta_1": 1.0}, "beta_1.*1.0"),
    ("Yogi", {"beta_2": 1.0}, "beta_2.*1.0"),
    ("Yogi", {"epsilon": 0.0}, "epsilon"),
    ("Yogi", {"l1_regularization_strength": float("inf")}, "l1_.*inf"),
    ("Yogi", {"l2_regularization_strength": -1.0}, "l2_.*-1.0"),
    ("Yogi", {"initial_accumulator_value": -1.0}, "accumulator.*-1.0"),
]

# What TensorFlow's class is given, and the text that the core then reads.
TEXTS = [
    ("SGD", {}, "sgd accumulate=1"),
    (
        "SGD",
        {"clip_weight_min": -1, "clip_weight_max": 2.5, "clipvalue": 3.0},
        "sgd clip_gradient_min=-3.0 clip_gradient_max=3.0 "
        "clip_weight_min=-1.0 clip_weight_max=2.5 accumulate=1",
    ),
    (
        "Adagrad",
        {"use_gradient_accumulation": False},
        "adagrad initial_accumulator_value=0.1 accumulate=0",
    ),
    (
        "Adagrad",
        {
            "weight_decay_factor": 0.5,
            "multiply_weight_decay_factor_by_learning_rate": True,
        },
        "adagrad initial_accumulator_value=0.1 weight_decay=0.5 "
        "weight_decay_times_learning_rate=1 accumulate=1",
    ),
    (
        "Adagrad",
        {
            "weight_decay_factor": 0.0,
            "multiply_weight_decay_factor_by_learning_rate": True,
        },
        "adagrad initial_accumulator_value=0.1 accumulate=1",
    ),
    (
        "AdagradMomentum",
        {"momentum": 0.9, "use_nesterov": True},
        "adagrad_momentum momentum=0.9 use_nesterov=1 exponent=2.0 beta2=1.0 "
        "epsilon=1e-10 accumulate=1",
    ),
    (
        "Adam",
        {"clipvalue": (None, 2.0), "sum_inside_sqrt": False},
        "adam beta_1=0.9 beta_2=0.999 epsilon=1e-07 sum_inside_sqrt=0 "
        "clip_gradient_max=2.0 accumulate=1",
    ),
    (
        "Adam",
        {"lazy_adam": False},
        "adam lazy_adam=0 beta_1=0.9 beta_2=0.999 epsilon=1e-07 "
        "sum_inside_sqrt=1 accumulate=1",
    ),
    (
        "FTRL",
        {"beta": 1.0, "multiply_linear_by_learning_rate": True},
        "ftrl learning_rate_power=-0.5 l1_regularization_strength=0.0 "
        "l2_regularization_strength=0.0 beta=1.0 "
        "initial_accumulator_value=0.1 multiply_linear_by_learning_rate=1 "
        "accumulate=1",
    ),
]

# Rules that TPUs know and TensorFlow's API does not: their text and slots.
OURS = [
    (
        "Momentum",
        {"use_nesterov": True, "clip_weight_max": 2.0},
        "momentum momentum=0.9 use_nesterov=1 clip_weight_max=2.0 accumulate=1",
        {"momenta": 0.0},
    ),
    (
        "RMSProp",
        {"momentum": 0.5},
        "rms_prop rho=0.9 momentum=0.5 epsilon=1e-10 accumulate=1",
        {"ms": 0.0, "mom": 0.0},
    ),
    (
        "CenteredRMSProp",
        {"epsilon": 0.5},
        "centered_rms_prop rho=0.9 momentum=0.0 epsilon=0.5 accumulate=1",
        {"ms": 0.0, "mom": 0.0, "mg": 0.0},
    ),
    (
        "ProximalAdagrad",
        {"l1_regularization_strength": 1},
        "proximal_adagrad initial_accumulator_value=0.1 "
        "l1_regularization_strength=1.0 l2_regularization_strength=0.0 "
        "accumulate=1",
        {"accumulators": 0.1},
    ),
    (
        "Adadelta",
        {"weight_decay_factor": 0.5},
        "adadelta rho=0.95 epsilon=1e-07 weight_decay=0.5 "
        "weight_decay_times_learning_rate=0 accumulate=1",
        {"accumulators": 0.0, "updates": 0.0},
    ),
    (
        "Lion",
        {"use_gradient_accumulation": False},
        "lion beta_1=0.9 beta_2=0.99 accumulate=0",
        {"momenta": 0.0},
    ),
    (
        "Lion",
        {"lazy_lion": False},
        "lion lazy_lion=0 beta_1=0.9 beta_2=0.99 accumulate=1",
        {"momenta": 0.0},
    ),
    (
        "RowWiseAdagrad",
        {},
        "row_wise_adagrad initial_accumulator_value=0.0 epsilon=1e-08 "
        "accumulate=1",
        {"accumulators": 0.0},
    ),
    (
        "Yogi",
        {"clipvalue": (None, 1.0)},
        "yogi beta_1=0.9 beta_2=0.999 epsilon=0.001 "
        "l1_regularization_strength=0.0 l2_regularization_strength=0.0 "
        "initial_accumulator_value=1e-06 clip_gradient_max=1.0 accumulate=1",
        {"v": 1e-06, "m": 0.0},
    ),
]

SLOTS = {
    "SGD": {},
    "Adagrad": {"accumulators": 0.1},
    "AdagradMomentum": {"accumulators": 0.0, "momenta": 0.0},
    "Adam": {"momenta": 0.0, "velocities": 0.0},
    "FTRL": {"accumulators": 0.1, "linears": 0.0},
}


def _ours(name: str, **arguments):
    return getattr(optimizers, name)(**arguments)


def _theirs(name: str, **arguments):
    return getattr(THEIRS, name)(**arguments)


@pytest.mark.parametrize(("name", "arguments", "text"), NOT_ALLOWED)
def test_what_is_not_allowed_is_refused_and_named(name, arguments, text):
    with pytest.raises(errors.ArgumentError, match=text):
        _ours(name, **arguments)


@pytest.mark.parametrize("name", NAMES)
def test_positional_arguments_and_defaults_are_tensorflows(name):
    ours = inspect.signature(getattr(optimizers, name)).parameters
    theirs = inspect.signature(getattr(THEIRS, name)).parameters
    positional = [p for p in ours.values() if p.kind != p.KEYWORD_ONLY]
    assert [(p.name, p.default) for p in positional] == [
        (p.name, p.default) for p in theirs.values()
    ]
    others = [p.name for p in ours.values() if p.kind == p.KEYWORD_ONLY]
    assert others == ["clipnorm", "global_clipnorm"]


@pytest.mark.parametrize(("name", "arguments", "text"), TEXTS)
def test_the_rule_text_carries_what_is_set(name, arguments, text):
    assert _ours(name, **arguments).rule_text() == text


def test_only_a_row_wise_rule_has_slots_of_one_float():
    assert optimizers.RowWiseAdagrad().row_wise_slots == {"accumulators"}
    assert not optimizers.Adagrad().row_wise_slots
    shape = optimizers.RowWiseAdagrad().slot_shape("accumulators", (5, 3))
    assert shape == (5, 1)
    assert optimizers.Adam().slot_shape("momenta", (5, 3)) == (5, 3)


@pytest.mark.parametrize(("name", "arguments", "text", "slots"), OURS)
def test_the_rules_of_our_own_carry_what_is_set(name, arguments, text, slots):
    rule = _ours(name, **arguments)
    assert rule.rule_text() == text
    assert rule.slot_initial_values == slots
    assert rule == _ours(name, **arguments)
    assert rule != _ours(name, learning_rate=7.0, **arguments)


@pytest.mark.parametrize(("name", "arguments", "text"), TEXTS)
def test_tensorflows_own_are_translated(name, arguments, text):
    del text
    translated = optimizers.from_tensorflow(_theirs(name, **arguments))
    assert translated == _ours(name, **arguments)


def test_a_callable_learning_rate_survives_translation():
    def rate():
        return 0.5

    theirs = THEIRS.Adagrad(rate)
    assert optimizers.from_tensorflow(theirs).learning_rate is rate


@pytest.mark.parametrize(
    "rate", [tf.constant(0.25), np.float32(0.25), np.array(0.25)]
)
def test_a_scalar_is_a_learning_rate(rate):
    assert optimizers.Adagrad(rate) == optimizers.Adagrad(0.25)
    translated = optimizers.from_tensorflow(THEIRS.Adagrad(rate))
    assert translated == optimizers.Adagrad(0.25)


@pytest.mark.parametrize("rate", ["0.1", [0.1], tf.constant([0.1])])
def test_anything_else_is_no_learning_rate(rate):
    with pytest.raises(errors.ArgumentError, match="a variable, a function"):
        optimizers.SGD(rate)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("SGD", {"weight_decay_factor": "x"}, "weight_decay_factor.*number"),
        ("SGD", {"clip_weight_min": "1"}, "clip_weight_min.*number"),
        ("SGD", {"clipvalue": ("a", 1.0)}, "clipvalue.*number"),
        ("Adam", {"beta_1": "x"}, "beta_1.*number; got 'x'"),
        ("FTRL", {"beta": None}, "beta.*number; got None"),
        ("SGD", {"clipvalue": (2.0, 1.0)}, "clipvalue.*lower and an upper"),
        (
            "SGD",
            {"clip_weight_min": 2.0, "clip_weight_max": 1.0},
            r"clip_weight_min, clip_weight_max.*\(2.0, 1.0\)",
        ),
    ],
)
def test_a_parameter_that_cannot_be_is_named(name, arguments, text):
    with pytest.raises(errors.ArgumentError, match=text):
        _ours(name, **arguments)


def test_of_a_variable_the_learning_rate_is_what_it_holds_then():
    rate = tf.Variable(1.0)
    ours, theirs = optimizers.SGD(rate), THEIRS.SGD(rate)
    rate.assign(0.5)
    assert ours.learning_rate() == 0.5
    assert optimizers.from_tensorflow(theirs) == ours
    assert ours != optimizers.SGD(tf.Variable(0.5))


def test_our_own_pass_the_translation_unchanged():
    adam = optimizers.Adam(0.1)
    assert optimizers.from_tensorflow(adam) is adam


@pytest.mark.parametrize("name", NAMES)
def test_slots_have_tensorflows_names(name):
    ours = _ours(name)
    assert ours.slot_initial_values == SLOTS[name]
    assert list(ours.slot_names) == _theirs(name)._slot_names()


@pytest.mark.parametrize("name", NAMES)
def test_equal_attributes_make_equal_descriptions(name):
    assert _ours(name, learning_rate=0.5) == _ours(name, learning_rate=0.5)
    assert hash(_ours(name)) == hash(_ours(name))
    assert _ours(name, learning_rate=0.5) != _ours(name, learning_rate=0.25)


def test_descriptions_of_different_rules_differ():
    assert optimizers.SGD(0.1) != optimizers.Adagrad(0.1)


def test_one_clip_value_is_the_pair_of_it():
    assert optimizers.SGD(clipvalue=2.0) == optimizers.SGD(
        clipvalue=(-2.0, 2.0)
    )
    assert optimizers.SGD(clipvalue=2.0).clip_gradient_min == -2.0


def test_a_description_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        optimizers.SGD().learning_rate = 1.0


@pytest.mark.parametrize("other", ["adam", 3, tf.keras.optimizers.SGD])
def test_other_objects_are_no_optimizers(other):
    with pytest.raises(errors.ArgumentError, match="unsupported optimizer"):
        optimizers.from_tensorflow(other)


def test_flags_are_whatever_is_true_as_tensorflows():
    rule = optimizers.Adam(use_gradient_accumulation=1, sum_inside_sqrt=0)
    assert rule == optimizers.Adam(sum_inside_sqrt=False)
    assert "accumulate=1 " in rule.rule_text() + " "


@pytest.mark.parametrize("name", NAMES)
def test_all_have_tensorflows_attributes(name):
    ours, theirs = getattr(optimizers, name)(), getattr(THEIRS, name)()
    for attribute in (
        "slot_variable_creation_fn",
        "low_dimensional_packing_status",
    ):
        if hasattr(theirs, attribute):
            assert getattr(ours, attribute) == getattr(theirs, attribute)
