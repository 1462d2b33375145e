"""QuantizationConfig: looked-up rows are rounded; tables and gradients are not."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks, steps
from oracle import Terms, assert_close, lookup_feature
from tfembed import errors, optimizers
from tfembed.config import FeatureConfig, QuantizationConfig, TableConfig

THEIRS = tf.tpu.experimental.embedding
IDS = range(-60, 60)
CONFIG = QuantizationConfig(5, -1.0, 1.0)


def rounded(x):
    """The nearest of -1, -0.5, 0, 0.5 and 1, halves up; apart from the product."""
    return np.floor((np.clip(x, -1.0, 1.0) + 1) / 0.5 + 0.5) * 0.5 - 1


def off_ties(shape, dtype):
    """Numbers in and out of the limits, 1e-3 of a bucket or more from a tie."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=shape)
    part = np.mod((np.clip(x, -1, 1) + 1) / 0.5 + 0.5, 1)
    near = np.minimum(part, 1 - part) < 1e-3
    return tf.constant(np.where(near & (np.abs(x) < 1), 0.0, x), dtype)


def configs(vocabulary):
    arguments = {} if vocabulary is None else {"initializer": off_ties}
    return steps.configs(
        vocabulary=vocabulary, quantization_config=CONFIG, **arguments
    )


@pytest.mark.parametrize(
    "vocabulary",
    [steps.cases.VOCABULARY, pytest.param(None, marks=marks.GROWS)],
)
def test_all_kinds_of_features_look_rounded_rows_up(vocabulary):
    fixed = vocabulary is not None
    embedding = tfembed.TPUEmbedding(configs(vocabulary), optimizers.SGD(0.5))
    rng = np.random.default_rng(11)
    for _ in range(4):
        step = steps.draw_step(rng)
        before = steps.Tables.of(embedding, IDS)
        embedding.enqueue(*step.inputs(), training=False)
        activations = tf.nest.flatten(embedding.dequeue())
        for feature, actual in zip(
            step.oracle_features, activations, strict=True
        ):
            expected = lookup_feature(
                feature,
                lambda i, r=before.rows[feature.table]: rounded(r[i]),
                steps.DIMS[feature.table],
                fixed_vocabulary=fixed,
            )
            assert_close(actual, expected)


@pytest.mark.parametrize(
    "vocabulary",
    [steps.cases.VOCABULARY, pytest.param(None, marks=marks.GROWS)],
)
def test_updates_are_those_of_a_table_that_is_not_quantized(vocabulary):
    fixed = vocabulary is not None
    optimizer = optimizers.Adagrad(0.5)
    embedding = tfembed.TPUEmbedding(configs(vocabulary), optimizer)
    step = steps.draw_step(np.random.default_rng(5))
    before = steps.Tables.of(embedding, IDS)
    embedding.enqueue(*step.inputs())
    embedding.dequeue()
    embedding.apply_gradients(step.structured_gradients())
    after = steps.Tables.of(embedding, IDS)
    steps.check_update(
        before, after, step, optimizer, 0.5, fixed_vocabulary=fixed
    )


def test_values_round_half_up_and_clip():
    x = tf.constant([[-9.0, -0.75, -0.25, 0.24, 0.25, 0.75, 9.0]])
    table = TableConfig(
        1, 7, lambda shape, dtype: x, quantization_config=CONFIG
    )
    embedding = tfembed.TPUEmbedding(FeatureConfig(table), None)
    embedding.enqueue(tf.constant([0]), training=False)
    assert embedding.dequeue().numpy().tolist() == [
        [-1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 1.0]
    ]
    np.testing.assert_array_equal(embedding.embedding_tables[table], x)


def test_tensorflows_own_is_accepted_and_serving_does_not_round_as_theirs():
    table = THEIRS.TableConfig(
        4, 2, off_ties, quantization_config=THEIRS.QuantizationConfig(5, -1, 1)
    )
    feature = THEIRS.FeatureConfig(table)
    embedding = tfembed.TPUEmbedding(feature, THEIRS.SGD(0.5))
    embedding.build()
    tables = embedding.embedding_tables
    ids = tf.constant([0, 3])
    embedding.enqueue(ids, training=False)
    rows = tables[table].numpy()[[0, 3]]
    assert_close(embedding.dequeue(), Terms.of(rounded(rows)))
    served = tfembed.serving_embedding_lookup(ids, None, tables, feature)
    np.testing.assert_array_equal(served, rows)
    np.testing.assert_array_equal(
        served, THEIRS.serving_embedding_lookup(ids, None, tables, feature)
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1, 0.0, 1.0), "num_buckets is 1, must be at least 2"),
        ((2, 1.0, 1.0), "`lower` must be less than `upper`"),
        ((2, 0.0, float("inf")), "finite"),
    ],
)
def test_what_is_not_allowed_is_refused(arguments, text):
    with pytest.raises(errors.ArgumentError, match=text):
        QuantizationConfig(*arguments)
