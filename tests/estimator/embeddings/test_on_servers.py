"""Tables that lie on parameter servers, in graphs with a device setter."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.servers import Servers
from tfembed.estimator.embeddings import host_tables
from tfembed.estimator.embeddings import parameters as p
from tfembed.estimator.embeddings.config_spec import EmbeddingConfigSpec
from tfembed.estimator.embeddings.host_tables import HostTables
from tfembed.estimator.embeddings.table_config import FeatureConfig, TableConfig

v1 = tf.compat.v1
ROWS, DIM, BATCH = 11, 3, 4


@pytest.fixture(name="servers", scope="module")
def make_servers():
    return Servers(3)


@pytest.fixture(autouse=True)
def _cut_small_tables(monkeypatch):
    """Has three servers share the rows of a table of 11."""
    monkeypatch.setattr(host_tables, "LEAST_BYTES", 4 * DIM * ROWS // 3)


def rows(shape, dtype=tf.float32, partition_info=None):
    """Rows that differ, whatever part of the table is asked for."""
    first = partition_info.var_offset[0] if partition_info else 0
    values = np.arange(first, first + shape[0])[:, None] + np.arange(DIM) / 8
    return tf.constant(values, dtype)


TABLES = {
    "mean": TableConfig(ROWS, DIM, rows),
    "sqrtn": TableConfig(ROWS, DIM, rows, "sqrtn"),
    "one": TableConfig(ROWS, DIM, rows, None),
    "small": TableConfig(2, DIM, rows, None),
    "ids": TableConfig(None, DIM, combiner="mean", seed=1),
    "names": TableConfig(None, DIM, combiner="sum", key_dtype=tf.string),
}
FEATURES = {
    "bag": FeatureConfig("mean"),
    "weighted": FeatureConfig("sqrtn", weight_key="weights"),
    "sequence": FeatureConfig("mean", max_sequence_length=2),
    "single": FeatureConfig("one"),
    "flag": FeatureConfig("small"),
    "user": FeatureConfig("ids", weight_key="of_user"),
    "name": FeatureConfig("names"),
}


def sparse(rng, draw):
    """Up to three values a sample."""
    counts = rng.integers(0, 4, BATCH)
    indices = [(i, j) for i, n in enumerate(counts) for j in range(n)]
    return tf.SparseTensor(
        np.array(indices, np.int64).reshape(-1, 2),
        [draw() for _ in indices],
        [BATCH, 3],
    )


def like(ids, rng):
    weights = rng.uniform(0.5, 2.0, ids.indices.shape[0]).astype(np.float32)
    return tf.SparseTensor(ids.indices, weights, ids.dense_shape)


def batch(rng):
    weighted = sparse(rng, lambda: rng.integers(-1, ROWS))
    user = sparse(rng, lambda: rng.integers(-(2**40), 2**40) % 7 - 3)
    bag = rng.integers(0, ROWS, 6)
    return {
        "bag": tf.RaggedTensor.from_row_splits(bag, np.array([0, 2, 2, 5, 6])),
        "weighted": weighted,
        "weights": like(weighted, rng),
        "sequence": sparse(rng, lambda: rng.integers(0, ROWS)),
        "single": tf.constant(rng.integers(0, ROWS, BATCH)),
        "flag": tf.constant(rng.integers(0, 2, BATCH)),
        "user": user,
        "of_user": like(user, rng),
        "name": sparse(rng, lambda: f"name {rng.integers(0, 5)}".encode()),
    }


class Program:
    """A step over some batches, its tables on servers or in this process.

    Args:
      setter: a device function, or None.
      keys: the features.
      num_replicas: each gets batches of its own.
      parameters: how tables are trained.
    """

    def __init__(
        self,
        setter,
        keys=tuple(FEATURES),
        num_replicas=1,
        parameters=None,
    ):
        self.graph = tf.Graph()
        with self.graph.as_default(), self.graph.device(setter):
            v1.set_random_seed(5)
            step = v1.train.get_or_create_global_step()
            features = {key: FEATURES[key] for key in keys}
            used = {feature.table_id for feature in features.values()}
            tables = HostTables(
                EmbeddingConfigSpec(
                    feature_to_config_dict=features,
                    table_to_config_dict={name: TABLES[name] for name in used},
                    optimization_parameters=parameters or p.AdamParameters(0.5),
                ),
                "train",
                num_replicas=num_replicas,
            )
            rng = np.random.default_rng(3)
            found = tables.look_up([batch(rng) for _ in range(num_replicas)])
            tables.make_variables()
            # The gradient of an activation is the activation itself.
            self.found = [[each[key] for key in sorted(keys)] for each in found]
            update = tables.update(self.found)
            with tf.control_dependencies([update]):
                self.step = v1.assign_add(step, 1).op
            self.init = v1.global_variables_initializer()
            self.saver = v1.train.Saver(sharded=True)

    def run(self, target, steps=2, restored=None, saved=None):
        """The activations before each step and after the last one.

        Args:
          target: of the session.
          steps: how many.
          restored: a checkpoint to begin with, or None.
          saved: where to save one at the end, or None.
        """
        with v1.Session(target, graph=self.graph) as session:
            session.run(self.init)
            if restored:
                self.saver.restore(session, restored)
            found = [session.run(self.found)]
            for _ in range(steps):
                session.run(self.step)
                found.append(session.run(self.found))
            if saved:
                self.saver.save(session, saved)
        return found


def assert_alike(found, expected):
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
        found,
        expected,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "keys": ("flag", "sequence", "user", "weighted"),
            "num_replicas": 2,
            "parameters": p.AdagradParameters(
                0.1, use_gradient_accumulation=False
            ),
        },
    ],
)
def test_tables_on_servers_train_as_those_of_one_process(servers, options):
    v1.Session.reset(servers.target)  # Forgets the tables of other tests.

    found = Program(servers.setter(), **options).run(servers.target)

    assert_alike(found, Program(None, **options).run(""))


def test_checkpoints_go_from_servers_to_one_process_and_back(servers, tmp_path):
    keys = ("user", "weighted")
    paths = [str(tmp_path / name) for name in ("servers", "alone")]
    v1.Session.reset(servers.target)
    first = Program(servers.setter(), keys).run(servers.target, saved=paths[0])
    second = Program(None, keys).run("", restored=paths[0], saved=paths[1])
    v1.Session.reset(servers.target)
    third = Program(servers.setter(), keys).run(
        servers.target, restored=paths[1]
    )

    whole = Program(None, keys).run("", steps=6)
    assert_alike([*first, *second[1:], *third[1:]], whole)
    rows = tf.train.load_variable(paths[0], "sqrtn")
    assert rows.shape == (ROWS, DIM)


@pytest.mark.parametrize(
    ("key", "ids"), [("single", [0, ROWS]), ("single", [-1, 3]), ("flag", [2])]
)
def test_an_id_that_no_server_has_is_refused_by_feature(servers, key, ids):
    with tf.Graph().as_default() as graph, graph.device(servers.setter()):
        tables = HostTables(
            EmbeddingConfigSpec(
                feature_to_config_dict={key: FEATURES[key]},
                table_to_config_dict={
                    FEATURES[key].table_id: TABLES[FEATURES[key].table_id]
                },
                optimization_parameters=p.AdamParameters(0.5),
            ),
            "infer",
        )
        found = tables.look_up([{key: tf.constant(ids, tf.int64)}])
        tables.make_variables()
        with v1.Session(servers.target) as session:
            session.run(v1.global_variables_initializer())
            with pytest.raises(tf.errors.InvalidArgumentError, match=key):
                session.run(found)


def test_large_tables_are_cut_and_others_go_where_least_lies(monkeypatch):
    monkeypatch.setattr(host_tables, "LEAST_BYTES", 1000)
    servers = ["a", "b", "c"]
    placed = host_tables._placed(
        {
            "large": TableConfig(1000, 2),  # 8,000 bytes: all servers.
            "two parts": TableConfig(300, 2),
            "two rows": TableConfig(2, 1000),
            "small": TableConfig(10, 2),
            "tiny": TableConfig(1, 1),
            "any ids": TableConfig(None, 2),
        },
        servers,
    )

    assert placed == {
        "large": ["a", "b", "c"],
        "two rows": ["a", "b"],
        "two parts": ["c", "a"],
        "small": ["c"],
        "tiny": ["c"],
        "any ids": ["a", "b", "c"],
    }


@pytest.mark.parametrize(
    ("vocabulary", "of_each"), [(None, 6), (ROWS, 5)], ids=["any", "cut"]
)
def test_tensors_between_processes_grow_with_features_and_servers(
    servers, vocabulary, of_each
):
    # The page of clusters says so: each tensor is a call.
    count, features = 3, 5
    with (
        tf.Graph().as_default(),
        v1.device(servers.setter()),
        v1.Session(servers.target) as session,
    ):
        v1.train.get_or_create_global_step()
        numbers = v1.placeholder(tf.int64, [features, BATCH])
        names = [f"f{i}" for i in range(features)]
        tables = HostTables(
            EmbeddingConfigSpec(
                feature_to_config_dict={n: FeatureConfig(n) for n in names},
                table_to_config_dict={
                    n: TableConfig(vocabulary, DIM, combiner="sum")
                    for n in names
                },
                optimization_parameters=p.AdagradParameters(0.1),
            ),
            "train",
        )
        (found,) = tables.look_up([dict(zip(names, tf.unstack(numbers)))])
        tables.make_variables()
        rows_of = [found[name] for name in names]
        loss = tf.add_n([tf.reduce_sum(x**2) for x in rows_of])
        update = tables.update([v1.gradients(loss, rows_of)])
        session.run(v1.global_variables_initializer())
        ran = v1.RunMetadata()
        session.run(
            [loss, update],
            {
                numbers: np.arange(features * BATCH).reshape([features, BATCH])
                % ROWS
            },
            options=v1.RunOptions(output_partition_graphs=True),
            run_metadata=ran,
        )

    sent = [
        node
        for graph in ran.partition_graphs
        for node in graph.node
        if node.op == "_Recv"
        and tf.DeviceSpec.from_string(node.attr["send_device"].s.decode()).job
        != tf.DeviceSpec.from_string(node.attr["recv_device"].s.decode()).job
    ]
    assert len(sent) <= (of_each * features + 5) * count
