"""Tables that grow with their ids, in the graphs of an estimator."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfembed import policies
from tfembed.estimator.embeddings import parameters as p
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.feature_columns import embedding_column
from tfembed.estimator.embeddings.host_tables import HostTables
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig

v1 = tf.compat.v1
ADAGRAD = p.AdagradParameters(1.0, 3.0)


class Graph:
    """A step of a graph with one feature, `x`, in a table of 1 column.

    Args:
      mode: of the estimator.
      num_replicas: each of which gets the same ids.
      options: of the TableConfig.
    """

    def __init__(self, mode, num_replicas=1, parameters=ADAGRAD, **options):
        options.setdefault("initializer", 0.5)
        self.graph = tf.Graph()
        with self.graph.as_default():
            config = TableConfig(None, 1, combiner=None, **options)
            self.ids = v1.placeholder(config.key_dtype, [None])
            tables = HostTables(
                EmbeddingConfigSpec(
                    feature_to_config_dict={"x": FeatureConfig("t")},
                    table_to_config_dict={"t": config},
                    optimization_parameters=parameters,
                ),
                mode,
                num_replicas=num_replicas,
            )
            features = tables.look_up([{"x": self.ids}] * num_replicas)
            self.rows = features[0]["x"]
            tables.make_variables()
            if mode == "train":
                ones = [tf.ones_like(each["x"]) for each in features]
                self.train = tables.update([[one] for one in ones])
            (table,) = tables._tables
            self.size = table.hash_table.size()
            self.saver = v1.train.Saver(sharded=True, allow_empty=True)
            self.init = v1.global_variables_initializer()

    def session(self):
        """A new session, its variables initialized."""
        session = v1.Session(graph=self.graph)
        session.run(self.init)
        return session


@pytest.mark.parametrize("num_replicas", [1, 2, 8])
@pytest.mark.parametrize(
    ("key_dtype", "ids"),
    [(tf.int64, [7, -(2**60)]), (tf.string, [b"a", b"b"])],
)
def test_training_makes_rows_and_sums_the_gradients_of_all_replicas(
    key_dtype, ids, num_replicas
):
    graph = Graph("train", num_replicas, key_dtype=key_dtype)
    with graph.session() as session:
        before = session.run([graph.rows, graph.size], {graph.ids: ids})
        session.run(graph.train, {graph.ids: ids})
        after = session.run([graph.rows, graph.size], {graph.ids: ids})

    moved = 0.5 - num_replicas / np.sqrt(3 + num_replicas**2)
    assert before[0].tolist() == [[0.5], [0.5]]
    assert before[1] == 0
    np.testing.assert_allclose(after[0], [[moved], [moved]], rtol=1e-6)
    assert after[1] == 2


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_a_checkpoint_has_rows_and_slots_and_other_modes_insert_none(
    tmp_path, mode
):
    graph, other = Graph("train"), Graph(mode)
    with graph.session() as session:
        session.run(graph.train, {graph.ids: [1, 2]})
        path = graph.saver.save(session, str(tmp_path / "model"))
        session.run(graph.train, {graph.ids: [1, 2]})
        twice = session.run(graph.rows, {graph.ids: [1, 2]})
    with other.session() as session:
        other.saver.restore(session, path)
        found = session.run(other.rows, {other.ids: [1, 2, 3]})
        size = session.run(other.size)
    with graph.session() as session:
        graph.saver.restore(session, path)
        session.run(graph.train, {graph.ids: [1, 2]})
        again = session.run(graph.rows, {graph.ids: [1, 2]})

    assert found.tolist() == [[0.0], [0.0], [0.5]]
    assert size == 2
    assert twice.tolist() == again.tolist()
    assert [name for name, _ in tf.train.list_variables(path)] == [
        "t_mht_1of1-keys",
        "t_mht_1of1-slots/adagrad/accumulators",
        "t_mht_1of1-values",
    ]


def test_ids_come_in_by_admission():
    graph = Graph("train", admission=policies.CountAdmission(2))
    with graph.session() as session:
        session.run(graph.train, {graph.ids: [1]})
        first = session.run(graph.size)
        session.run(graph.train, {graph.ids: [1, 2]})
        second = session.run(graph.size)

    assert (first, second) == (0, 1)


def test_rows_expire_after_steps():
    graph = Graph(
        "train",
        eviction=policies.LeastRecent(),
        expiry=policies.Expiry(limit=2, every=1),
    )
    with graph.session() as session:
        sizes = []
        for ids in ([1, 2], [1], [1], [1]):
            session.run(graph.train, {graph.ids: ids})
            sizes.append(session.run(graph.size))

    assert sizes[0] == 2
    assert sizes[-1] == 1


def test_a_table_keeps_to_its_bound():
    graph = Graph("train", max_size=3, eviction=policies.LeastRecent())
    with graph.session() as session:
        for first in range(0, 12, 2):
            session.run(graph.train, {graph.ids: [first, first + 1]})
        size = session.run(graph.size)

    assert size == 3


def test_without_accumulation_a_row_moves_for_each_core():
    graph = Graph(
        "train",
        2,
        p.AdagradParameters(1.0, 3.0, use_gradient_accumulation=False),
    )
    with graph.session() as session:
        session.run(graph.train, {graph.ids: [1, 2]})
        rows = session.run(graph.rows, {graph.ids: [1, 2]})

    moved = 0.5 - 1 / np.sqrt(4) - 1 / np.sqrt(5)
    np.testing.assert_allclose(rows, [[moved], [moved]], rtol=1e-6)


@pytest.mark.parametrize("on_tpu", [True, False])
def test_a_column_reads_activations_in_an_input_layer(on_tpu):
    columns = [
        embedding_column(
            "user", 2, initializer=[1.0, 2.0], key_dtype=tf.string
        ),
        embedding_column("item", 1, initializer=3.0, combiner="sum"),
    ]
    spec = EmbeddingConfigSpec(columns, ADAGRAD)
    assert HostTables.needed(spec, on_tpu=on_tpu)
    with tf.Graph().as_default():
        tables = HostTables(spec, "train", on_tpu=on_tpu)
        (features,) = tables.look_up(
            [
                {
                    "user": tf.constant(["a", ""]),
                    "item": tf.constant([[5, 6], [7, -1]]),
                }
            ]
        )
        features = tables.capture(features)
        layer = v1.feature_column.input_layer(features, columns)
        v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(layer))
        gradients = tables.gradients()
        tables.make_variables()
        update = tables.update([gradients])
        with v1.Session() as session:
            session.run(v1.local_variables_initializer())
            session.run(v1.global_variables_initializer())
            before = session.run(layer)
            session.run(update)
            after = session.run(layer)

    assert before.tolist() == [[6.0, 1.0, 2.0], [3.0, 0.0, 0.0]]
    assert after.tolist() == [[5.0, 0.5, 1.5], [2.5, 0.0, 0.0]]


def test_a_sequence_column_reads_activations_and_lengths():
    tf_keras = pytest.importorskip("tf_keras")
    column = embedding_column("x", 1, initializer=3.0, max_sequence_length=2)
    with tf.Graph().as_default():
        tables = HostTables(EmbeddingConfigSpec([column], ADAGRAD), "eval")
        (features,) = tables.look_up(
            [{"x": tf.constant([[1, 2, 3], [4, -1, -1]])}]
        )
        layer = tf_keras.experimental.SequenceFeatures([column])
        tables.make_variables()
        fetches = layer(features)
        with v1.Session() as session:
            rows, lengths = session.run(fetches)

    assert rows.tolist() == [[[3.0], [3.0]], [[3.0], [0.0]]]
    assert lengths.tolist() == [2, 1]


def test_a_saved_model_has_the_rows(tmp_path):
    graph, served = Graph("train"), Graph("infer")
    with graph.session() as session:
        session.run(graph.train, {graph.ids: [1, 2]})
        path = graph.saver.save(session, str(tmp_path / "model"))
    export = str(tmp_path / "export")
    with served.session() as session, served.graph.as_default():
        served.saver.restore(session, path)
        builder = v1.saved_model.Builder(export)
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {
                "serving_default": v1.saved_model.predict_signature_def(
                    {"x": served.ids}, {"rows": served.rows}
                )
            },
            saver=served.saver,
        )
        builder.save()

    loaded = tf.saved_model.load(export).signatures["serving_default"]
    found = loaded(tf.constant([1, 2, 3], tf.int64))["rows"]
    assert found.numpy().tolist() == [[0.0], [0.0], [0.5]]
