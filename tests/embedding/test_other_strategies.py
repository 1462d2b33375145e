"""Strategies that are not in this release, and that are not an object's own."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import tfembed
from cpu_replicas import mirrored
from embedding import counting, v0
from tfembed import errors

KINDS = {
    "TPUEmbedding": lambda features: tfembed.TPUEmbedding(
        features, tfembed.SGD(0.1)
    ),
    "TPUEmbeddingV0": lambda features: tfembed.TPUEmbeddingV0(features, None),
    "TPUEmbeddingForServing": lambda features: tfembed.TPUEmbeddingForServing(
        features, None
    ),
}


OTHERS = {
    "MultiWorkerMirroredStrategy": tf.distribute.MultiWorkerMirroredStrategy,
    "CentralStorageStrategy": (
        tf.distribute.experimental.CentralStorageStrategy
    ),
}


def _feature():
    return {"clicks": tfembed.FeatureConfig(counting.table())}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OTHERS)
def test_objects_under_another_strategy_are_not_in_this_release(name, kind):
    strategy = OTHERS[name]()
    with (
        strategy.scope(),
        pytest.raises(
            errors.UnsupportedError, match=f"{kind} under {name}.*; use "
        ),
    ):
        KINDS[kind](_feature())


@pytest.mark.parametrize("name", OTHERS)
def test_calls_under_another_strategy_are_not_in_this_release(name):
    embedding = counting.embedding()
    embedding.build(1)
    strategy = OTHERS[name]()
    with pytest.raises(errors.UnsupportedError, match=f"under {name}.*; use "):
        strategy.run(lambda: embedding.enqueue({"clicks": tf.constant([1])}))


def test_v0_is_not_used_under_another_strategy_than_its_own():
    embedding = tfembed.TPUEmbeddingV0(_feature(), None)
    embedding.build()
    strategy = mirrored(2)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)
    table = v0.table_of(embedding)
    calls = [
        lambda: embedding({"clicks": tf.constant([1])}),
        lambda: embedding.apply_optimizer(
            optimizer, [(tf.ones_like(table), table)]
        ),
    ]
    for call in calls:
        with pytest.raises(
            errors.StateError, match="Mirrored.*made under the default strategy"
        ):
            strategy.run(call)


def test_serving_looks_up_under_another_strategy_once_it_is_built():
    serving = tfembed.TPUEmbeddingForServing(_feature(), None)
    strategy = mirrored(2)

    def look_up():
        return serving({"clicks": tf.constant([1])})["clicks"]

    with pytest.raises(errors.StateError, match="build is called under a Mirr"):
        strategy.run(look_up)
    serving.build()
    for one in strategy.experimental_local_results(strategy.run(look_up)):
        assert one.numpy().tolist() == [[0.0, 0.0]]
