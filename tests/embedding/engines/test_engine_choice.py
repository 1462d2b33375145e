"""Which engine a table gets, why, and that steps go to the right one."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from proof.paper_tpu import paper_strategy
from tfembed import errors


def _features(**vocabularies):
    return {
        name: tfembed.FeatureConfig(
            tfembed.TableConfig(size, 4, name=f"{name}_table")
        )
        for name, size in vocabularies.items()
    }


def _engines(embedding) -> list[tuple[str, str]]:
    lines = embedding.describe().splitlines()[1:]
    return [tuple(line.split()[:2]) for line in lines]


def test_without_a_tpu_tables_are_on_the_host():
    embedding = tfembed.TPUEmbedding(_features(a=8, b=None), tfembed.SGD(0.1))

    assert _engines(embedding) == [("a_table", "host"), ("b_table", "host")]
    assert "no TPUStrategy" in embedding.describe()


def test_an_unknown_engine_is_refused():
    with pytest.raises(errors.ArgumentError, match="'host'.*'gpu'"):
        tfembed.TPUEmbedding(_features(a=8), engine="gpu")


@pytest.mark.parametrize("engine", ["xla", "tpu"])
def test_a_table_without_a_vocabulary_needs_the_host(engine):
    with pytest.raises(errors.ArgumentError, match=r"b_table.*vocabulary_size"):
        tfembed.TPUEmbedding(_features(a=8, b=None), engine=engine)


def test_the_host_takes_what_it_is_asked_to():
    embedding = tfembed.TPUEmbedding(_features(a=8), engine="host")

    assert "asked for" in embedding.describe()


def test_under_a_tpu_strategy_a_table_that_grows_is_on_the_host():
    with tf.Graph().as_default(), paper_strategy(1).scope():
        embedding = tfembed.TPUEmbedding(_features(b=None), tfembed.SGD(0.1))

    assert _engines(embedding) == [("b_table", "host")]
    assert "no fixed vocabulary" in embedding.describe()


def test_under_a_tpu_strategy_every_table_needs_an_optimizer():
    with (
        tf.Graph().as_default(),
        paper_strategy(1).scope(),
        pytest.raises(ValueError, match=r"NoneType.*unsupported.*'a_table'"),
    ):
        tfembed.TPUEmbedding(_features(a=8), None)


def test_serving_is_not_there_under_a_tpu_strategy():
    with (
        tf.Graph().as_default(),
        paper_strategy(1).scope(),
        pytest.raises(errors.UnsupportedError, match="TPUStrategy"),
    ):
        tfembed.TPUEmbeddingForServing(_features(a=8), None)


def test_what_no_program_compiles_is_on_the_host():
    def newest(valency, vectors):
        return vectors[0]

    table = tfembed.TableConfig(
        8, 4, combiner=tfembed.CustomCombiner(newest, 2), name="a_table"
    )
    with tf.Graph().as_default(), paper_strategy(1).scope():
        embedding = tfembed.TPUEmbedding(
            tfembed.FeatureConfig(table), tfembed.SGD(0.1)
        )

    assert _engines(embedding) == [("a_table", "host")]
    assert "CustomCombiner" in embedding.describe()


def test_packed_features_stay_out_of_a_tpus_step():
    features = _features(a=8)
    with tf.Graph().as_default():
        strategy = paper_strategy(1)
        with strategy.scope():
            embedding = tfembed.TPUEmbedding(
                features, tfembed.SGD(0.1), engine="host"
            )
            packed = tfembed.pack_features({"a": tf.constant([1, 2])})
            with pytest.raises(errors.ArgumentError, match="outside"):
                strategy.run(embedding.enqueue, args=(packed,))
