"""Checkpoints of V0 whose rows are spread over replicas, and its tables."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding.marks import NEEDS_XLA
from embedding.xla import spread_tables
from proof.paper_tpu import eager_on_paper
from tfembed import errors

pytestmark = NEEDS_XLA


def test_two_optimizers_of_one_name_would_share_slots():
    strategy = eager_on_paper(spread_tables.REPLICAS)
    embedding = spread_tables.embedding(strategy)
    with strategy.scope():
        one, two = (keras.optimizers.Adagrad() for _ in range(2))
        three = keras.optimizers.Adagrad(name="three")
    embedding.build_optimizer(one)
    embedding.build_optimizer(one)
    with pytest.raises(errors.ArgumentError, match="named 'adagrad'"):
        embedding.build_optimizer(two)
    embedding.build_optimizer(three)


def test_checkpoints_have_whole_tables_and_all_replicas_slots(tmp_path):
    rng = np.random.default_rng(0)
    saved = {}
    embedding = None
    for replicas in (4, 3):
        strategy = eager_on_paper(replicas)
        embedding = spread_tables.embedding(strategy, tfembed.Adagrad(0.1))
        with strategy.scope():
            embedding.build_optimizer(keras.optimizers.Adam())
        parts = {
            key: child
            for key, child in embedding._trackable_children().items()
            if hasattr(child, "read_value")
        }
        slots = ("accumulators", "adam/momentum", "adam/velocity")
        assert set(parts) == {
            name
            for table in ("users", "items", "narrow")
            for name in (table, *(f"{table}/{slot}" for slot in slots))
        }
        if not saved:
            for key, part in parts.items():
                saved[key] = rng.normal(size=part.shape).astype(np.float32)
                part.assign(saved[key])
            path = tf.train.Checkpoint(e=embedding).save(str(tmp_path / "v0"))
            continue
        tf.train.Checkpoint(e=embedding).restore(path).assert_consumed()
        for key, part in parts.items():
            np.testing.assert_array_equal(part.numpy(), saved[key])
    # One replica's rows of a table: those with ids of its remainder.
    shard = embedding._shards.values[0].values[1].numpy()
    np.testing.assert_array_equal(shard[:3], saved["users"][1::3])

    whole = tfembed.TPUEmbeddingV0(
        embedding._plan.feature_config, tfembed.Adagrad(0.1), engine="host"
    )
    whole.build()
    status = tf.train.Checkpoint(e=whole).restore(path)
    status.assert_existing_objects_matched()
    np.testing.assert_array_equal(
        _tables_by_config(whole)["narrow"], saved["narrow"]
    )


def _tables_by_config(embedding):
    return {
        config.name: table.numpy()
        for config, table in embedding.embedding_tables.items()
    }


def test_slots_of_a_checkpoint_wait_for_the_first_step(tmp_path):
    strategy = eager_on_paper(spread_tables.REPLICAS)
    embedding = spread_tables.embedding(strategy)
    with strategy.scope():
        embedding.build_optimizer(keras.optimizers.Adagrad(0.1))
    slot = embedding._trackable_children()["users/adagrad/accumulator"]
    wanted = np.arange(80, dtype=np.float32).reshape(10, 8)
    slot.assign(wanted)
    path = tf.train.Checkpoint(e=embedding).save(str(tmp_path / "v0"))

    again = spread_tables.embedding(strategy)
    tf.train.Checkpoint(e=again).restore(path)
    with strategy.scope():
        optimizer = keras.optimizers.Adagrad(0.1)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(spread_tables.look_up(again)[0])
        variables = again.trainable_variables
        again.apply_optimizer(
            optimizer,
            zip(tape.gradient(loss, variables), variables, strict=True),
        )

    spread_tables.trace(strategy, step)

    found = again._trackable_children()["users/adagrad/accumulator"]
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_tables_are_read_and_assigned_as_one():
    embedding = spread_tables.embedding(eager_on_paper(3))
    table = spread_tables.tables(embedding)["items"]
    rows = np.arange(56, dtype=np.float32).reshape(7, 8)
    table.assign(rows)
    np.testing.assert_array_equal(table.numpy(), rows)
    np.testing.assert_array_equal(tf.convert_to_tensor(table), rows)
    with pytest.raises(errors.ArgumentError, match="items takes"):
        table.assign(rows[:3])
