"""TableConfig and FeatureConfig."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.config as config
from tfembed import errors, initializers

THEIRS = tf.tpu.experimental.embedding

BAD_TABLES = [
    ({"vocabulary_size": 0}, "vocabulary_size.*0"),
    ({"vocabulary_size": -1}, "vocabulary_size.*-1"),
    ({"vocabulary_size": np.int64(3)}, "vocabulary_size"),
    ({"vocabulary_size": 3.0}, "vocabulary_size.*3.0"),
    ({"dim": 0}, "dim.*0"),
    ({"dim": np.int32(2)}, "dim"),
    ({"dim": None}, "dim.*None"),
    ({"initializer": 3.0}, "initializer.*3.0"),
    ({"combiner": "max"}, "combiner.*max"),
    ({"combiner": 3}, "combiner.*int"),
    ({"dtype": tf.int64}, "dtype.*int64"),
    ({"dtype": tf.bfloat16}, "float32.*bfloat16.*vocabulary_size=8"),
    ({"quantization_config": 4}, "quantization_config.*4"),
    ({"seed": 3}, "seed=3 and vocabulary_size=8"),
    ({"key_dtype": tf.int32}, "key_dtype.*int32"),
    ({"key_dtype": tf.string}, "key_dtype=tf.string.*vocabulary_size=8"),
    ({"stochastic_rounding": True}, "stochastic_rounding.*dtype=float32"),
    ({"stochastic_rounding": 1}, "stochastic_rounding.*1"),
]

LATER = [
    ({"dtype": tf.int32}, "dtype=tf.int32"),
    ({"layout": object()}, "layout"),
]

ACCEPTED = [{"quantization_config": THEIRS.QuantizationConfig(4, 0.0, 1.0)}]

if hasattr(THEIRS, "CustomCombiner"):  # Newer than TensorFlow 2.16.
    COMBINER = THEIRS.CustomCombiner(lambda n, rows: rows[0], 4)
    ACCEPTED.append({"combiner": COMBINER})

BAD_FEATURES = [
    ({"table": "users"}, "table.*str"),
    ({"max_sequence_length": -1}, "max_sequence_length.*-1"),
    ({"max_sequence_length": 1.5}, "max_sequence_length.*1.5"),
    ({"max_sequence_length": np.int64(2)}, "max_sequence_length"),
    ({"validate_weights_and_indices": 1}, "validate_weights_and_indices.*1"),
]


def _table(**changes) -> config.TableConfig:
    return config.TableConfig(
        **{"vocabulary_size": 8, "dim": 4, "name": "users", **changes}
    )


@pytest.mark.parametrize(("changes", "text"), BAD_TABLES)
def test_a_bad_table_is_refused_and_the_value_named(changes, text):
    with pytest.raises(errors.ArgumentError, match=text):
        _table(**changes)


@pytest.mark.parametrize(("changes", "text"), LATER)
def test_what_is_not_in_this_release_says_so(changes, text):
    with pytest.raises(errors.UnsupportedError, match=text):
        _table(**changes)


@pytest.mark.parametrize("changes", ACCEPTED)
def test_tensorflows_own_options_are_taken_as_they_are(changes):
    ((name, value),) = changes.items()
    assert getattr(_table(**changes), name) is value


@pytest.mark.parametrize(("changes", "text"), BAD_FEATURES)
def test_a_bad_feature_is_refused_and_the_value_named(changes, text):
    with pytest.raises(errors.ArgumentError, match=text):
        config.FeatureConfig(**{"table": _table(), **changes})


def test_an_embeddings_own_sizes_are_whole_numbers_of_any_type():
    embedding = tfembed.TPUEmbedding(
        config.FeatureConfig(_table(), name="clicks"),
        tfembed.SGD(0.1),
        max_enqueued=np.float64(2),
    )
    with pytest.raises(errors.ArgumentError, match="per_replica_batch_size"):
        embedding.build(per_replica_batch_size=2.5)
    embedding.build(per_replica_batch_size=2.0)
    embedding.enqueue(tf.constant([1, 2]))
    assert embedding.dequeue().shape == [2, 4]


def test_positional_arguments_are_tensorflows():
    table = config.TableConfig(8, 4, None, None, "sum", "users", None, None)
    assert (table.combiner, table.name) == ("sum", "users")
    feature = config.FeatureConfig(table, 3, False, [2], "watched")
    assert feature.max_sequence_length == 3
    assert feature.output_shape == tf.TensorShape([2])
    assert feature.name == "watched"


def test_a_table_is_itself_and_not_its_values():
    assert _table() != _table()
    assert len({_table(), _table()}) == 2


def test_configs_say_what_tensorflows_say_of_themselves():
    def texts(configs):
        table = configs.TableConfig(2, 4, combiner="sum", name="users")
        feature = configs.FeatureConfig(table, output_shape=[3], name="watched")
        return repr(table), repr(feature)

    assert texts(config) == texts(THEIRS)


def test_a_table_says_what_only_ours_has():
    assert repr(_table(vocabulary_size=None, seed=3)).endswith(
        "quantization_config=None, seed=3)"
    )


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        _table().dim = 3


def test_a_feature_takes_tensorflows_tables():
    theirs = THEIRS.TableConfig(8, 4, name="users")
    assert config.FeatureConfig(theirs).table is theirs


def test_a_feature_without_an_output_shape_has_an_unknown_one():
    assert config.FeatureConfig(_table()).output_shape.rank is None


def test_rows_start_with_a_standard_deviation_of_one_over_root_dim():
    rows = _table(dim=64).initializer((2000, 64), dtype=tf.float32)
    # A normal distribution cut at two deviations keeps 0.88 of its deviation.
    assert np.std(rows) == pytest.approx(0.88 / 8, rel=0.01)
    assert np.max(np.abs(rows)) <= 2 / 8


def test_a_table_without_a_vocabulary_has_keyed_initial_rows():
    table = _table(vocabulary_size=None, dim=64, seed=7)
    row = initializers.row_initializer(table.initializer, 64)
    assert row == initializers.RowInitializer("truncated_normal", (0.0, 0.125))


def test_an_initializer_that_cannot_be_keyed_is_refused():
    with pytest.raises(errors.ArgumentError, match="Known forms"):
        _table(vocabulary_size=None, initializer=tf.random.uniform)
