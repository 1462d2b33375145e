"""What an EmbeddingConfigSpec and its parts refuse."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfembed import errors, policies
from tfembed.estimator.embeddings import parameters as p
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.feature_columns import embedding_column
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig

ADAGRAD = p.AdagradParameters(0.1)


def tpu_column(key="x", **arguments):
    categorical = tf.feature_column.categorical_column_with_identity(key, 10)
    return tf.compat.v1.tpu.experimental.embedding_column(
        categorical, 4, **arguments
    )


def dicts(features=None, tables=None):
    return {
        "feature_to_config_dict": features or {"x": FeatureConfig("t")},
        "table_to_config_dict": tables or {"t": TableConfig(10, 4)},
    }


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({}, ValueError, "Exactly one of `feature_columns` and the pair"),
        (
            {
                "feature_columns": [tpu_column()],
                "optimization_parameters": ADAGRAD,
                **dicts(),
            },
            ValueError,
            "Exactly one of `feature_columns` and the pair",
        ),
        (
            {"feature_to_config_dict": {"x": FeatureConfig("t")}},
            ValueError,
            "Exactly one of `feature_columns` and the pair",
        ),
        (
            {"partition_strategy": "invalid", **dicts()},
            ValueError,
            "Invalid partition_strategy invalid. Must be one of "
            '"mod" or "div".',
        ),
        (
            {
                "feature_columns": ["x"],
                "optimization_parameters": ADAGRAD,
            },
            TypeError,
            "All feature columns must be supported types in",
        ),
        (
            {"feature_columns": [tpu_column()]},
            ValueError,
            "optimization_parameters must be an instance of type",
        ),
        (
            {
                "feature_columns": [tpu_column()],
                "optimization_parameters": tf.compat.v1.train.AdamOptimizer(),
            },
            ValueError,
            "optimization_parameters must be an instance of type",
        ),
        (
            {"optimization_parameters": 0.1, **dicts()},
            ValueError,
            "optimization_parameters must be an instance of type",
        ),
        (
            dicts(features={"x": "t"}),
            TypeError,
            "Config for feature x must be of type `FeatureConfig`. Got",
        ),
        (
            dicts(features={"x": FeatureConfig("u")}),
            ValueError,
            "Feature x refers to table u which is not in the "
            "table_to_config_dict.",
        ),
        (
            dicts(tables={"t": 10}),
            TypeError,
            "Config for table t must be of type `TableConfig`. Got",
        ),
        (
            dicts(tables={"t": TableConfig(10, 4), "u": TableConfig(10, 4)}),
            ValueError,
            "specifies table that is not used in `feature_to_config_dict`: u",
        ),
        (
            {"experimental_gradient_multiplier_fn": 2.0, **dicts()},
            ValueError,
            "`experimental_gradient_multiplier_fn` must be a function",
        ),
    ],
)
def test_a_spec_that_is_not_allowed_is_refused(arguments, kind, text):
    with pytest.raises(kind) as raised:
        EmbeddingConfigSpec(**arguments)

    assert text in str(raised.value)
    assert isinstance(raised.value, errors.TfembedError)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TableConfig(0, 4), "Invalid vocabulary_size 0"),
        (lambda: TableConfig("ten", 4), "Invalid vocabulary_size 'ten'"),
        (lambda: TableConfig(10, 0), "Invalid dimension 0"),
        (
            lambda: TableConfig(10, 4, initializer=1.0),
            "initializer must be callable if specified",
        ),
        (
            lambda: TableConfig(10, 4, combiner="max"),
            "Invalid combiner 'max'",
        ),
        (
            lambda: TableConfig(
                10, 4, learning_rate=0.1, learning_rate_fn=lambda step: 0.1
            ),
            "At most one of learning_rate and learning_rate_fn",
        ),
        (
            lambda: TableConfig(10, 4, learning_rate="fast"),
            "`learning_rate` must be a number",
        ),
        (
            lambda: TableConfig(10, 4, learning_rate_fn=0.1),
            "`learning_rate_fn` must be a function of the global step",
        ),
        (
            lambda: TableConfig(10, 4, optimization_parameters=0.1),
            "`optimization_parameters` must be one of the Parameters classes",
        ),
        (
            lambda: TableConfig(10, 4, max_size=5),
            "`max_size` is for tables without a vocabulary",
        ),
        (
            lambda: TableConfig(10, 4, eviction=policies.LeastFrequent()),
            "`eviction` is for tables without a vocabulary",
        ),
        (
            lambda: TableConfig(10, 4, key_dtype=tf.string),
            "`key_dtype` is for tables without a vocabulary",
        ),
        (
            lambda: FeatureConfig("t", max_sequence_length=-1),
            "Invalid max_sequence_length -1",
        ),
        (
            lambda: FeatureConfig("t", max_sequence_length="long"),
            "Invalid max_sequence_length 'long'",
        ),
        (
            lambda: FeatureConfig("t", 3, weight_key="w"),
            "weights have no effect",
        ),
    ],
)
def test_a_config_that_is_not_allowed_is_refused(make, text):
    with pytest.raises(errors.ArgumentError) as raised:
        make()

    assert text in str(raised.value)


def test_columns_on_the_tensor_core_are_listed_apart():
    on_core = tpu_column(
        "y",
        embedding_lookup_device="tpu_tensor_core",
        tensor_core_shape=[None, 2],
    )
    other = tpu_column("x")
    spec = EmbeddingConfigSpec([on_core, other], ADAGRAD)

    assert spec.feature_columns == [other]
    assert spec.tensor_core_feature_columns == [on_core]


def test_arguments_may_be_given_in_the_order_of_tensorflow_2_15():
    def multiplier(step):
        return 2.0

    spec = EmbeddingConfigSpec(
        None,
        ADAGRAD,
        None,
        True,
        multiplier,
        {"x": FeatureConfig("t", 3)},
        {"t": TableConfig(10, 4, None, "sum", True, 0.5, None, ADAGRAD)},
        "mod",
        "/profiles",
    )

    assert spec.pipeline_execution_with_tensor_core
    assert spec.experimental_gradient_multiplier_fn is multiplier
    assert spec.feature_to_config_dict["x"].max_sequence_length == 3
    assert spec.table_to_config_dict["t"].hot_id_replication
    assert spec.table_to_config_dict["t"].learning_rate == 0.5
    assert spec.partition_strategy == "mod"
    assert spec.profile_data_directory == "/profiles"


def test_a_column_without_a_vocabulary_describes_its_table_and_feature():
    column = embedding_column(
        "user", 3, key_dtype=tf.string, weight_key="w", table_name="people"
    )

    assert column.table_name == "people"
    assert column.table_config.vocabulary_size is None
    assert column.parse_example_spec == {
        "user": tf.io.VarLenFeature(tf.string),
        "w": tf.io.VarLenFeature(tf.float32),
    }
    assert column.variable_shape.as_list() == [3]


def test_a_column_without_a_vocabulary_needs_an_estimator():
    column = embedding_column("user", 3)

    with (
        tf.Graph().as_default(),
        pytest.raises(errors.StateError, match="Give the column to a TPUEstim"),
    ):
        tf.compat.v1.feature_column.input_layer(
            {"user": tf.constant([1, 2])}, [column]
        )
