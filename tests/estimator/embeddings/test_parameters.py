"""The seven Parameters classes: what they refuse, and their arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from estimator.embeddings.batches import draw
from oracle import Rule, Table, assert_close
from tfembed import errors
from tfembed.estimator.embeddings import parameters as p
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.host_tables import HostTables
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig

RATE = 0.3

EACH = {
    "Adagrad": (
        p.AdagradParameters(RATE, 0.2),
        Rule("adagrad", {"initial_accumulator_value": 0.2}),
        ["Adagrad"],
    ),
    "ProximalAdagrad": (
        p.ProximalAdagradParameters(RATE, 0.2, 0.05, 0.1),
        Rule(
            "proximal_adagrad",
            {
                "initial_accumulator_value": 0.2,
                "l1_regularization_strength": 0.05,
                "l2_regularization_strength": 0.1,
            },
        ),
        ["ProximalAdagrad"],
    ),
    "Adam": (
        p.AdamParameters(RATE, 0.8, 0.9, 0.1),
        Rule(
            "adam",
            {
                "beta_1": 0.8,
                "beta_2": 0.9,
                "epsilon": 0.1,
                "sum_inside_sqrt": True,
            },
        ),
        ["Adam/m", "Adam/v"],
    ),
    "Adam of all rows": (
        p.AdamParameters(
            RATE, 0.8, 0.9, 0.1, lazy_adam=False, sum_inside_sqrt=False
        ),
        Rule(
            "adam",
            {
                "beta_1": 0.8,
                "beta_2": 0.9,
                "epsilon": 0.1,
                "sum_inside_sqrt": False,
            },
            moves_all_rows=True,
        ),
        ["Adam/m", "Adam/v"],
    ),
    "Ftrl": (
        p.FtrlParameters(RATE, -0.4, 0.2, 0.01, 0.02, beta=0.1),
        Rule(
            "ftrl",
            {
                "learning_rate_power": -0.4,
                "l1_regularization_strength": 0.01,
                "l2_regularization_strength": 0.02,
                "beta": 0.1,
                "initial_accumulator_value": 0.2,
                "multiply_linear_by_learning_rate": False,
            },
        ),
        ["Ftrl", "Ftrl_1"],
    ),
    "SGD": (p.StochasticGradientDescentParameters(RATE), Rule("sgd", {}), []),
    "SGD with limits and decay": (
        p.StochasticGradientDescentParameters(
            RATE,
            clip_weight_min=-0.9,
            clip_weight_max=1.1,
            weight_decay_factor=0.1,
            multiply_weight_decay_factor_by_learning_rate=True,
            clip_gradient_min=-0.5,
            clip_gradient_max=0.4,
        ),
        Rule(
            "sgd",
            {
                "clip_weight_min": -0.9,
                "clip_weight_max": 1.1,
                "weight_decay": 0.1,
                "weight_decay_times_learning_rate": True,
                "clip_gradient_min": -0.5,
                "clip_gradient_max": 0.4,
            },
        ),
        [],
    ),
    "Momentum": (
        p.MomentumParameters(RATE, 0.7, use_nesterov=True),
        Rule("momentum", {"momentum": 0.7, "use_nesterov": True}),
        ["Momentum"],
    ),
    "RMSProp": (
        p.RMSPropParameters(RATE, 0.8, 0.6, 0.05),
        Rule("rms_prop", {"rho": 0.8, "momentum": 0.6, "epsilon": 0.05}),
        ["RMSProp/ms", "RMSProp/mom"],
    ),
}


@pytest.mark.parametrize("num_replicas", [1, 2, 8])
@pytest.mark.parametrize("name", EACH)
def test_all_replicas_gradients_are_summed_and_applied_once(name, num_replicas):
    parameters, rule, suffixes = EACH[name]
    rng = np.random.default_rng(7)
    start = rng.normal(size=[7, 3]).astype(np.float32)
    batches = [draw(rng, kind="sparse") for _ in range(num_replicas)]
    wanted = [rng.normal(size=[4, 3]).astype(np.float32) for _ in batches]
    oracle = Table(range(7), start, has_rows=True, rule=rule)

    with tf.Graph().as_default():
        # The batches of the graph, of the same numbers.
        rng = np.random.default_rng(7)
        rng.normal(size=[7, 3])
        batches = [draw(rng, kind="sparse") for _ in range(num_replicas)]
        tables = HostTables(
            EmbeddingConfigSpec(
                feature_to_config_dict={"x": FeatureConfig("table")},
                table_to_config_dict={
                    "table": TableConfig(
                        7,
                        3,
                        initializer=tf.compat.v1.constant_initializer(start),
                    )
                },
                optimization_parameters=parameters,
            ),
            "train",
            num_replicas=num_replicas,
        )
        tables.look_up([{"x": batch.value} for batch in batches])
        tables.make_variables()
        update = tables.update([[tf.constant(g)] for g in wanted])
        variables = tf.compat.v1.global_variables()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(3):
                session.run(update)
                oracle.step([b.feature for b in batches], wanted, RATE)
            rows, *slots = session.run(variables)

    names = [variable.op.name for variable in variables]
    assert names == [
        "table/part_0",
        *(f"table/{suffix}/part_0" for suffix in suffixes),
    ]
    assert_close(rows, oracle.rows, "rows")
    for slot, expected in zip(slots, oracle.slots, strict=True):
        assert_close(slot, expected, "slot")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: p.AdagradParameters(0.1, 0.0),
            "Adagrad initial_accumulator must be positive",
        ),
        (
            lambda: p.ProximalAdagradParameters(0.1, -1.0),
            "Adagrad initial_accumulator must be positive",
        ),
        (
            lambda: p.ProximalAdagradParameters(
                0.1, l1_regularization_strength=-1.0
            ),
            "l1_regularization_strength must be greater than or equal to 0",
        ),
        (
            lambda: p.AdamParameters(0.1, beta1=1.0),
            "beta1 must be between 0. and 1; got 1.0",
        ),
        (
            lambda: p.AdamParameters(0.1, beta2=-0.1),
            "beta2 must be between 0. and 1; got -0.1",
        ),
        (
            lambda: p.AdamParameters(0.1, epsilon=0.0),
            "epsilon must be positive; got 0.0",
        ),
        (
            lambda: p.AdamParameters(
                0.1, lazy_adam=False, use_gradient_accumulation=False
            ),
            "When disabling Lazy Adam, gradient accumulation must be used",
        ),
        (
            lambda: p.FtrlParameters(0.1, learning_rate_power=0.5),
            "learning_rate_power must be less than or equal to 0. got 0.5",
        ),
        (
            lambda: p.FtrlParameters(0.1, initial_accumulator_value=-1.0),
            "initial_accumulator_value must be greater than",
        ),
        (
            lambda: p.FtrlParameters(0.1, l2_regularization_strength=-1.0),
            "l2_regularization_strength must be greater than or equal to 0",
        ),
        (
            lambda: p.StochasticGradientDescentParameters(
                0.1, use_gradient_accumulation=False, clip_gradient_min=0.0
            ),
            "gradient clipping limits, gradient accumulation must be enabled",
        ),
        (
            lambda: p.MomentumParameters(lambda: 0.1, 0.9),
            "`learning_rate` of MomentumParameters must be a number",
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(make, text):
    with pytest.raises(errors.ArgumentError) as raised:
        make()

    assert text in str(raised.value)
    assert isinstance(raised.value, ValueError)
