"""Descriptions as JSON and back."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import errors, optimizers, policies
from tfembed.keras import descriptions

THEIRS = tf.tpu.experimental.embedding


def _through_text(value):
    return descriptions.from_json(
        json.loads(json.dumps(descriptions.to_json(value)))
    )


@keras.saving.register_keras_serializable("tests")
def a_rate():
    return 0.25


@keras.saving.register_keras_serializable("tests")
def an_update(gradient, row, slots, rate, hyperparameters):
    return row - rate * hyperparameters[0] * gradient, slots


@keras.saving.register_keras_serializable("tests")
def a_sum(valency, vectors):
    return tf.reduce_sum(vectors, 0)


OPTIMIZERS = [
    getattr(optimizers, name)(learning_rate=0.5)
    for name in optimizers.__all__
    if name not in ("Optimizer", "CustomOptimizer", "from_tensorflow")
]


@pytest.mark.parametrize(
    "optimizer",
    [
        *OPTIMIZERS,
        optimizers.Adam(a_rate, clipvalue=(None, 2.0), lazy_adam=False),
        optimizers.SGD(np.float32(0.5), clipvalue=1.0),
    ],
    ids=lambda one: one.rule_text(),
)
def test_an_optimizer_comes_back_equal(optimizer):
    assert _through_text(optimizer) == optimizer


def test_an_optimizer_of_tensorflows_comes_back_as_ours():
    assert _through_text(THEIRS.FTRL(0.5, beta=2.0)) == optimizers.FTRL(
        0.5, beta=2.0
    )


def test_functions_come_back_by_their_registered_names():
    custom = optimizers.CustomOptimizer(
        an_update, a_rate, ["v"], [keras.initializers.Constant(2.0)], [0.5]
    )
    back = _through_text(custom)
    assert back.custom_computation is an_update
    assert back.learning_rate is a_rate
    assert back.hyperparameters == (0.5,)
    assert back.slot_initial_values == {"v": 2.0}


def test_a_structure_keeps_its_kinds_its_keys_and_shared_tables():
    items = tfembed.TableConfig(9, 2, name="items")
    users = tfembed.TableConfig(9, 2, name="users")
    structure = {
        3: tfembed.FeatureConfig(items, 5, False, [4, 5], "last"),
        7: [tfembed.FeatureConfig(users), (tfembed.FeatureConfig(items),)],
    }
    back = _through_text(structure)
    tf.nest.assert_same_structure(back, structure)
    assert back[3].table is back[7][1][0].table
    assert back[3].table is not back[7][0].table
    assert (back[3].max_sequence_length, back[3].name) == (5, "last")
    assert back[3].validate_weights_and_indices is False
    assert back[3].output_shape == [4, 5]
    assert back[7][0].output_shape.rank is None


def test_a_table_keeps_all_its_fields():
    table = tfembed.TableConfig(
        None,
        4,
        [1.0, 2.0, 3.0, 4.0],
        optimizers.Adagrad(0.5),
        combiner=tfembed.CustomCombiner(a_sum, 3),
        name="users",
        quantization_config=tfembed.QuantizationConfig(8, -1.0, 1.0),
        dtype=tf.bfloat16,
        seed=7,
        admission=policies.CountAdmission(2),
        eviction=policies.LeastRecent(),
        expiry=policies.Expiry(10, every=5),
        max_size=100,
        key_dtype=tf.string,
        stochastic_rounding=True,
    )
    back = _through_text(tfembed.FeatureConfig(table)).table
    for field in ("optimizer", "name", "quantization_config", "dtype", "seed"):
        assert getattr(back, field) == getattr(table, field)
    for field in ("admission", "eviction", "expiry", "max_size", "key_dtype"):
        assert getattr(back, field) == getattr(table, field)
    assert back.stochastic_rounding and back.vocabulary_size is None
    assert back.combiner.combiner_computation is a_sum
    assert back.initializer.arguments == (1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    "initializer",
    [
        None,
        keras.initializers.RandomUniform(1.0, 2.0, seed=3),
        tf.compat.v1.random_uniform_initializer(1.0, 2.0, seed=3),
        tf.constant_initializer(0.5),
        tf.initializers.Zeros(),
    ],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("configs", [tfembed, THEIRS], ids=["ours", "theirs"])
def test_initializers_of_keras_and_tensorflow_come_back(initializer, configs):
    table = configs.TableConfig(500, 16, initializer, name="users")
    back = _through_text(configs.FeatureConfig(table)).table
    rows = [t.initializer((500, 16), dtype=tf.float32) for t in (table, back)]
    before, after = (np.asarray(r) for r in rows)
    assert after.dtype == np.float32
    for statistic in (np.min, np.max, np.mean, np.std):
        assert statistic(after) == pytest.approx(statistic(before), abs=0.02)


def test_what_is_not_registered_is_named():
    field = "slot_variable_creation_fn"
    with pytest.raises(errors.ArgumentError, match=f"`{field}`.*registered"):
        descriptions.to_json(optimizers.Adagrad(**{field: lambda *_: {}}))


def test_a_rate_that_is_a_lambda_is_written_as_keras_writes_it():
    encoded = descriptions.to_json(optimizers.Adagrad(lambda: 0.5))

    assert "__lambda__" in str(encoded)


def test_an_initializer_of_the_programs_own_is_refused_unless_registered():
    class Own:
        def __call__(self, shape, dtype):
            return tf.zeros(shape, dtype)

    table = tfembed.TableConfig(9, 2, Own(), name="users")
    with pytest.raises(errors.ArgumentError, match="`initializer`.*registered"):
        descriptions.to_json(tfembed.FeatureConfig(table))


def test_a_description_that_is_not_there_is_named():
    encoded = descriptions.to_json(optimizers.SGD())
    encoded["value"]["class_name"] = "Nadam"
    with pytest.raises(errors.ArgumentError, match="'Nadam'.*newer"):
        descriptions.from_json(encoded)


def test_tensorflows_row_ids_come_back_as_ours():
    table = tfembed.TableConfig(8, 2, THEIRS.RowIdInitializer(3), name="t")
    back = _through_text(tfembed.FeatureConfig(table)).table
    assert back.initializer == tfembed.RowIdInitializer(3)
