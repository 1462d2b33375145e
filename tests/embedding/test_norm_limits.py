"""Gradients are scaled down to the norms that an optimizer allows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import counting
from embedding.marks import NEEDS_XLA
from tfembed import dynamic_embedding as de
from tfembed import errors, ops, optimizers
from tfembed.foreign_optimizers.rules import FusedRule

RULES = sorted(
    name
    for name in optimizers.__all__
    if isinstance(getattr(optimizers, name), type)
    and name not in ("Optimizer", "CustomOptimizer")
)
USERS, ITEMS = [[1, 2], [1]], [[5], [5]]
# The gradient of each activation, and by it the sums of rows.
OF_USERS, OF_ITEMS = [[3.0, 0.0], [1.0, 2.0]], [[0.0, 1.0], [2.0, 1.0]]
USER_SUMS = {1: [4.0, 2.0], 2: [3.0, 0.0]}
ITEM_SUMS = {5: [2.0, 2.0]}


def norm(*sums):
    return np.sqrt(sum(np.square(list(one.values())).sum() for one in sums))


def embedding_of(rule, kind="static", strategy=None):
    def table(name):
        if kind == "static":
            return tfembed.TableConfig(8, 2, "zeros", combiner="sum", name=name)
        return tfembed.TableConfig(None, 2, "zeros", combiner="sum", name=name)

    with (strategy or tf.distribute.get_strategy()).scope():
        return tfembed.TPUEmbedding(
            {
                "users": tfembed.FeatureConfig(table("users")),
                "items": tfembed.FeatureConfig(table("items")),
            },
            rule,
        )


def train(embedding, of_users=OF_USERS, of_items=OF_ITEMS):
    embedding.enqueue({"users": USERS, "items": ITEMS})
    embedding.dequeue()
    embedding.apply_gradients(
        {"users": tf.constant(of_users), "items": tf.constant(of_items)}
    )


def check_rows(embedding, users, items):
    for name, sums, scale in (
        ("users", USER_SUMS, users),
        ("items", ITEM_SUMS, items),
    ):
        table = embedding.embedding_tables[name]
        rows = (
            tf.gather(table, list(sums))
            if isinstance(table, tf.Variable)
            else table[list(sums)]
        )
        np.testing.assert_allclose(
            rows, -scale * np.array(list(sums.values())), rtol=1e-6
        )


KINDS = pytest.mark.parametrize("kind", ["static", "grown"])


@KINDS
@pytest.mark.parametrize("in_function", [False, True])
def test_clipnorm_limits_the_gradient_of_each_table(kind, in_function):
    embedding = embedding_of(tfembed.SGD(1.0, clipnorm=3.0), kind)
    embedding.build(per_replica_batch_size=2)
    step = tf.function(train) if in_function else train
    step(embedding)
    assert norm(USER_SUMS) > 3.0 > norm(ITEM_SUMS)
    check_rows(embedding, users=3.0 / norm(USER_SUMS), items=1.0)


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm"])
def test_a_step_with_a_limit_is_one_update_without_sums_beside_it(option):
    embedding = embedding_of(tfembed.SGD(1.0, **{option: 3.0}))
    embedding.build(per_replica_batch_size=2)
    graph = tf.function(train).get_concrete_function(embedding).graph
    types = [op.type for op in graph.get_operations()]
    assert types.count("Tfembed>StepUpdate") == 1
    assert "Tfembed>GroupedLookupGradient" not in types


@pytest.mark.parametrize(
    ("limits", "groups", "rule", "match"),
    [
        ([1.0], [0, 1], "sgd", "one entry for each of the 2 tables"),
        ([1.0, 1.0], [], "sgd", "one entry for each of the 2 tables"),
        ([], [0, 1], "sgd", "one entry for each of the 2 tables"),
        ([1.0, 2.0], [3, 3], "sgd", "same in a group; got 2 for table 1"),
        ([0.0, -1.0], [0, 1], "sgd", "above 0, or 0 for none"),
        ([1.0, 0.0], [0, 1], "sgd accumulate=0", "sums none"),
    ],
)
def test_limits_that_do_not_fit_the_tables_are_refused(
    limits, groups, rule, match
):
    tables = [tf.Variable(tf.zeros([4, 2])) for _ in range(2)]
    ids = ops.feature_ids(tf.constant([1], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        ops.grouped_update(
            tables,
            [],
            [2, 2],
            [ids, ids],
            [ops.FeaturePlan(t, "sum") for t in range(2)],
            [tf.ones([1, 2])] * 2,
            rules=[rule] * 2,
            learning_rates=[1.0, 1.0],
            norm_limits=limits,
            norm_groups=groups,
        )
    assert not any(np.any(table) for table in tables)


@KINDS
def test_global_clipnorm_limits_all_tables_of_a_description(kind):
    embedding = embedding_of(tfembed.SGD(1.0, global_clipnorm=3.0), kind)
    train(embedding)
    scale = 3.0 / norm(USER_SUMS, ITEM_SUMS)
    check_rows(embedding, users=scale, items=scale)


def test_tables_of_other_descriptions_have_norms_of_their_own():
    embedding = embedding_of(tfembed.SGD(1.0, global_clipnorm=3.0))
    tables = [
        tfembed.TableConfig(
            8, 2, "zeros", tfembed.SGD(1.0, global_clipnorm=limit), "sum", name
        )
        for name, limit in (("users", 3.0), ("items", 1.0))
    ]
    embedding = tfembed.TPUEmbedding(
        {t.name: tfembed.FeatureConfig(t) for t in tables}
    )
    train(embedding)
    check_rows(
        embedding, users=3.0 / norm(USER_SUMS), items=1.0 / norm(ITEM_SUMS)
    )


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm"])
def test_a_gradient_within_the_limit_is_left_as_it_is(option):
    limited, plain = (
        embedding_of(tfembed.Adagrad(0.5, **options))
        for options in ({option: 100.0}, {})
    )
    for embedding in (limited, plain):
        train(embedding)
    for name in ("users", "items"):
        np.testing.assert_array_equal(
            limited.embedding_tables[name], plain.embedding_tables[name]
        )


def test_the_norm_is_that_of_the_sums_over_replicas():
    strategy = counting.mirrored()
    embedding = embedding_of(tfembed.SGD(1.0, clipnorm=3.0), "static", strategy)
    embedding.build(per_replica_batch_size=2)
    strategy.run(train, (embedding,))  # Each replica has the same batch.
    scale = 3.0 / norm(USER_SUMS)
    check_rows(embedding, users=scale, items=2 * 3.0 / (2 * norm(ITEM_SUMS)))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_moves_as_by_a_gradient_of_that_norm(rule):
    rule = getattr(optimizers, rule)
    limited = embedding_of(rule(0.5, clipnorm=1.0))
    plain = embedding_of(rule(0.5))
    train(limited)
    train(
        plain,
        np.float32(OF_USERS) / np.float32(norm(USER_SUMS)),
        np.float32(OF_ITEMS) / np.float32(norm(ITEM_SUMS)),
    )
    for name in ("users", "items"):
        np.testing.assert_allclose(
            limited.embedding_tables[name],
            plain.embedding_tables[name],
            rtol=1e-4,
            atol=1e-6,
        )


def test_a_sum_that_is_not_finite_is_skipped_and_counts_for_no_norm():
    embedding = embedding_of(tfembed.SGD(1.0, global_clipnorm=1.0))
    train(embedding, [[np.nan, 0.0], [1.0, 2.0]])
    np.testing.assert_array_equal(
        tf.gather(embedding.embedding_tables["users"], [1, 2]), np.zeros([2, 2])
    )
    np.testing.assert_allclose(
        embedding.embedding_tables["items"][5],
        -np.array(ITEM_SUMS[5]) / norm(ITEM_SUMS),
        rtol=1e-6,
    )
    assert embedding.sizes()["users"].nonfinite_rows == 2


def test_refused_sums_change_nothing():
    embedding = tfembed.TPUEmbedding(
        tfembed.FeatureConfig(
            tfembed.TableConfig(8, 2, "zeros", combiner="sum", name="users")
        ),
        tfembed.SGD(1.0, clipnorm=1.0),
        nonfinite="refuse",
    )
    embedding.enqueue(USERS)
    embedding.dequeue()
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite|NaN"):
        embedding.apply_gradients(tf.constant([[np.nan, 0.0], [1.0, 2.0]]))
    assert not np.any(embedding.embedding_tables["users"])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm"])
def test_a_hash_table_has_one_norm_whatever_its_shards(shards, option):
    table = tfembed.HashTable(
        2, name="t", initializer=0.0, devices=["/CPU:0"] * shards
    )
    table.attach(tfembed.SGD(1.0, **{option: 3.0}))
    table.apply_gradients([1, 2, 1], [[3.0, 0.0], [3.0, 0.0], [1.0, 2.0]])
    np.testing.assert_allclose(
        table[[1, 2]],
        -np.array([[4.0, 2.0], [3.0, 0.0]]) * 3.0 / norm(USER_SUMS),
        rtol=1e-6,
    )
    table.apply_gradients(tf.zeros([0], tf.int64), tf.zeros([0, 2]))
    assert len(table) == 2


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm"])
def test_a_dynamic_embedding_optimizer_keeps_to_the_descriptions_norm(option):
    v = de.Variable(dim=2, initializer=0.0)
    optimizer = de.DynamicEmbeddingOptimizer(tfembed.SGD(1.0, **{option: 3.0}))
    with tf.GradientTape() as tape:
        rows = de.embedding_lookup(v, [1, 2, 1], name="x")
        loss = tf.reduce_sum(rows * [[3.0, 0.0], [3.0, 0.0], [1.0, 2.0]])
    optimizer.apply_gradients([(tape.gradient(loss, v), v)])
    np.testing.assert_allclose(
        v[[1, 2]],
        -np.array([[4.0, 2.0], [3.0, 0.0]]) * 3.0 / norm(USER_SUMS),
        rtol=1e-6,
    )


def test_rules_with_other_limits_are_other_rules():
    assert tfembed.SGD(1.0, clipnorm=1) == tfembed.SGD(1.0, clipnorm=1.0)
    assert tfembed.SGD(1.0, clipnorm=1) != tfembed.SGD(1.0)
    table = tfembed.HashTable(2, name="t")
    table.attach(tfembed.SGD(1.0, clipnorm=1.0))
    with pytest.raises(errors.ArgumentError, match="second one"):
        table.attach(tfembed.SGD(1.0))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clipnorm": 0.0}, "clipnorm.*positive"),
        ({"global_clipnorm": -1.0}, "global_clipnorm.*positive"),
        ({"clipnorm": float("inf")}, "clipnorm.*finite"),
        ({"clipnorm": "1"}, "clipnorm.*number"),
        ({"clipnorm": 1.0, "global_clipnorm": 1.0}, "At most one"),
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "At most one"),
        (
            {"clipnorm": 1.0, "use_gradient_accumulation": False},
            "clipnorm.*sums none",
        ),
    ],
)
@pytest.mark.parametrize("rule", ["SGD", "Lion"])
def test_limits_that_are_not_allowed_are_refused(rule, options, match):
    with pytest.raises(errors.ArgumentError, match=match):
        getattr(optimizers, rule)(1.0, **options)


@NEEDS_XLA
@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm"])
def test_engines_without_sums_of_a_step_refuse_by_name(option):
    rule = tfembed.SGD(1.0, **{option: 1.0})
    config = tfembed.FeatureConfig(
        tfembed.TableConfig(8, 2, name="users"), output_shape=[2]
    )
    with pytest.raises(
        errors.UnsupportedError, match=f"'users' has a {option}"
    ):
        tfembed.TPUEmbedding(config, rule, engine="xla")
    with pytest.raises(errors.UnsupportedError, match=option):
        tfembed.TPUEmbedding(config, rule)._create_config_proto()
    with pytest.raises(errors.UnsupportedError, match=option):
        tfembed.tpu.estimate(config, rule, topology="v5e:2x2", batch_size=8)


def test_a_description_without_limits_has_no_step_beside_it():
    assert FusedRule(tfembed.SGD(1.0)).optimizer.norm_limit is None
    assert (
        de.DynamicEmbeddingOptimizer(tfembed.SGD(1.0))._wrapped.clipping is None
    )
