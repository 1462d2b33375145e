"""Frozen functions: dense variables are constants, tables stay resources.

TensorFlow would take the handle of a table for a variable: in lookups of every form,
in control flow, layers, the embedding classes, loaded SavedModels, and graphs of
TensorFlow 1.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import convert_to_constants

import tfembed
from tfembed import dynamic_embedding as de

IDS = tf.constant([1, 2, 7], tf.int64)
SPEC = tf.TensorSpec([None], tf.int64)
ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [0.5, 0.5]], np.float32)
WEIGHTS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def _by_graph(concrete, **options):
    frozen, _ = convert_to_constants.convert_variables_to_constants_v2_as_graph(
        concrete, **options
    )
    return frozen


FREEZE = {
    "v2": convert_to_constants.convert_variables_to_constants_v2,
    "as graph": _by_graph,
    "control flow kept": lambda concrete: _by_graph(
        concrete, lower_control_flow=False
    ),
    "inlined": lambda concrete: _by_graph(concrete, aggressive_inlining=True),
}


class Program(tf.Module):
    """A table of one or two shards, a shadow of it and a dense variable."""

    def __init__(self, shards=1):
        super().__init__()
        self.table = de.Variable(
            dim=2, name="t", initializer=0.5, devices=["/CPU:0"] * shards
        )
        self.table.upsert(IDS[:2], ROWS[:2])
        self.shadow = de.shadow_ops.ShadowVariable(self.table, name="s")
        self.shadow.embedding_lookup(tf.range(10, dtype=tf.int64))
        self.dense = tf.Variable(WEIGHTS)

    def look_up(self, ids):
        return de.embedding_lookup(self.table, ids, name="q")

    def shadowed(self, ids):
        return de.shadow_ops.embedding_lookup(self.shadow, ids)


def _bags(ids):
    return tf.RaggedTensor.from_row_splits(ids, [0, 2, 3]).to_sparse()


def _mean(rows):
    return np.stack([rows[:2].mean(0), rows[2]])


DENSE = ROWS @ WEIGHTS
PROGRAMS = {
    "lookup": (lambda p, i: p.look_up(i) @ p.dense, DENSE),
    "unique": (
        lambda p, i: de.embedding_lookup_unique(p.table, i, name="q") @ p.dense,
        DENSE,
    ),
    "max_norm": (
        lambda p, i: de.embedding_lookup(p.table, i, name="q", max_norm=9.0),
        ROWS,
    ),
    "shadow": (lambda p, i: p.shadowed(i) @ p.dense, DENSE),
    "shadow and table": (lambda p, i: p.shadowed(i) + p.look_up(i), 2 * ROWS),
    "sparse": (
        lambda p, i: de.embedding_lookup_sparse(
            p.table, _bags(i), None, name="q"
        ),
        _mean(ROWS),
    ),
    "safe": (
        lambda p, i: de.safe_embedding_lookup_sparse(
            p.table, _bags(i), default_id=0
        ),
        _mean(ROWS),
    ),
    "sparse by shadow": (
        lambda p, i: de.embedding_lookup_sparse(
            p.shadow, _bags(i), None, name="q"
        ),
        _mean(ROWS),
    ),
    "Variable.lookup": (lambda p, i: p.table.lookup(i) @ p.dense, DENSE),
    "cond": (
        lambda p, i: tf.cond(
            tf.size(i) > 2,
            lambda: p.look_up(i) @ p.dense,
            lambda: p.shadowed(i),
        ),
        DENSE,
    ),
    "switch_case": (
        lambda p, i: tf.switch_case(
            tf.size(i) - 2, [lambda: p.shadowed(i), lambda: 2.0 * p.look_up(i)]
        ),
        2 * ROWS,
    ),
    "while_loop": (
        lambda p, i: tf.while_loop(
            lambda n, _: n < 3,
            lambda n, total: (n + 1, total + p.look_up(i) @ p.dense),
            (0, tf.zeros([3, 2])),
        )[1],
        3 * DENSE,
    ),
    "map_fn": (
        lambda p, i: tf.map_fn(
            p.shadowed, i, fn_output_signature=tf.TensorSpec([2])
        ),
        ROWS,
    ),
    "a function that it calls": (
        lambda p, i: tf.function(p.look_up)(i) @ p.dense,
        DENSE,
    ),
}


def _frozen_call(frozen, concrete, *arguments):
    """Calls it with the live function's tables."""
    assert {t.op.type for t in frozen.inputs} == {"Placeholder"}
    ops = [op.type for op in frozen.graph.get_operations()]
    assert "ReadVariableOp" not in ops
    captured = {i.name: outer for outer, i in concrete.graph.captures}
    given = iter(arguments)
    return frozen(
        *[
            captured[t.name] if t.name in captured else next(given)
            for t in frozen.inputs
        ]
    )


def _resources(frozen):
    return sum(t.dtype == tf.resource for t in frozen.inputs)


# All programs in one way, and a few in all ways and with more shards.
CASES = [(name, "v2", 1) for name in PROGRAMS]
CASES += [(name, "v2", 2) for name in ("lookup", "shadow", "sparse", "cond")]
CASES += [
    (name, how, 1)
    for name in ("shadow", "cond", "while_loop")
    for how in list(FREEZE)[1:]
]


@pytest.mark.parametrize(("name", "how", "shards"), CASES)
def test_a_live_function_is_frozen_with_its_tables(name, how, shards):
    program, (function, expected) = Program(shards), PROGRAMS[name]
    concrete = tf.function(
        lambda ids: function(program, ids), input_signature=[SPEC]
    ).get_concrete_function()

    frozen = FREEZE[how](concrete)
    program.dense.assign(tf.zeros_like(program.dense))

    (found,) = tf.nest.flatten(_frozen_call(frozen, concrete, IDS))
    np.testing.assert_allclose(found, expected, 1e-6)
    assert _resources(frozen) == shards


@pytest.mark.parametrize(
    ("name", "how"), [case[:2] for case in CASES if case[2] == 1]
)
def test_a_loaded_signature_is_frozen_with_its_tables(name, how, tmp_path):
    program, (function, expected) = Program(), PROGRAMS[name]
    program.serve = tf.function(
        lambda ids: function(program, ids), input_signature=[SPEC]
    )
    path = str(tmp_path)
    tf.saved_model.save(program, path, signatures=program.serve)
    loaded = tf.saved_model.load(path)
    concrete = loaded.signatures["serving_default"]

    frozen = FREEZE[how](concrete)

    (found,) = tf.nest.flatten(_frozen_call(frozen, concrete, IDS))
    np.testing.assert_allclose(found, expected, 1e-6)
    assert _resources(frozen) == 1


def test_the_shadows_value_is_a_constant():
    program = Program()
    program.shadow.embedding_lookup(IDS)
    concrete = tf.function(
        lambda ids: program.shadow.value() + 0.0 * program.look_up(ids),
        input_signature=[SPEC],
    ).get_concrete_function()
    frozen = FREEZE["v2"](concrete)
    (found,) = _frozen_call(frozen, concrete, IDS)
    np.testing.assert_allclose(found, ROWS)


def test_a_frozen_function_sees_what_the_table_is_given_later():
    program = Program()
    concrete = tf.function(
        program.look_up, input_signature=[SPEC]
    ).get_concrete_function()
    frozen = FREEZE["v2"](concrete)
    program.table.upsert(IDS, 10 * ROWS)
    np.testing.assert_allclose(
        _frozen_call(frozen, concrete, IDS)[0], 10 * ROWS
    )


def test_a_table_of_strings_stays_a_resource():
    table = de.Variable(tf.string, dim=2, name="words", initializer=0.5)
    table.upsert(["a"], [[1.0, 2.0]])
    concrete = tf.function(
        lambda words: de.embedding_lookup(table, words, name="q"),
        input_signature=[tf.TensorSpec([None], tf.string)],
    ).get_concrete_function()
    frozen = FREEZE["v2"](concrete)
    (found,) = _frozen_call(frozen, concrete, tf.constant(["a", "b"]))
    np.testing.assert_allclose(found, [[1.0, 2.0], [0.5, 0.5]])


LAYERS = {
    "Embedding": {},
    "SquashedEmbedding": {},
    "FieldWiseEmbedding": {
        "nslots": 2,
        "slot_map_fn": lambda ids: tf.cast(ids % 2, tf.int32),
    },
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("exported", [False, True])
def test_a_model_with_a_layer_is_frozen(kind, exported, tmp_path):
    layer = getattr(de.keras.layers, kind)(2, name=kind, **LAYERS[kind])
    layer.params.upsert(IDS, ROWS)
    inputs = keras.Input([2], dtype="int64")
    model = keras.Model(inputs, keras.layers.Dense(3)(layer(inputs)))
    ids = tf.constant([[1, 2], [7, 1]], tf.int64)
    expected = model(ids)
    if exported:
        model.export(str(tmp_path), verbose=False)
        loaded = tf.saved_model.load(str(tmp_path))
        concrete = loaded.signatures["serving_default"]
    else:
        concrete = tf.function(lambda ids: model(ids)).get_concrete_function(
            tf.TensorSpec([None, 2], tf.int64)
        )

    frozen = FREEZE["v2"](concrete)

    (found,) = tf.nest.flatten(_frozen_call(frozen, concrete, ids))
    np.testing.assert_allclose(found, expected, 1e-6)
    assert _resources(frozen) == 1


def _features():
    ones = tf.keras.initializers.Constant(0.25)
    tables = [
        tfembed.TableConfig(8, 2, name="static", initializer=ones),
        tfembed.TableConfig(None, 2, name="growing", initializer=ones),
    ]
    return {t.name: tfembed.FeatureConfig(t) for t in tables}


def _stepped(embedding):
    def look_up(inputs):
        embedding.enqueue(inputs, training=False)
        return embedding.dequeue()

    return look_up


SERVED = {
    "TPUEmbeddingForServing": lambda: tfembed.TPUEmbeddingForServing(
        _features(), None
    ),
    "TPUEmbeddingV0": lambda: tfembed.TPUEmbeddingV0(_features(), None),
    "TPUEmbedding": lambda: _stepped(
        tfembed.TPUEmbedding(_features(), tfembed.SGD(0.1))
    ),
    "DistributedEmbedding": lambda: tfembed.keras.layers.DistributedEmbedding(
        _features(), tfembed.SGD(0.1)
    ),
}


@pytest.mark.parametrize("kind", SERVED)
@pytest.mark.parametrize("how", ["v2", "control flow kept"])
def test_the_embedding_classes_are_frozen(kind, how):
    look_up = SERVED[kind]()
    concrete = tf.function(
        lambda ids: look_up({"static": ids, "growing": ids}),
        input_signature=[tf.TensorSpec([3], tf.int64)],
    ).get_concrete_function()

    frozen = FREEZE[how](concrete)

    found = _frozen_call(frozen, concrete, IDS)
    assert len(found) == 2
    for one in found:
        np.testing.assert_allclose(one, np.full([3, 2], 0.25))


# With the tables that stay: TensorFlow's ops make constants of the static one
# where they read it, and a step has a queue.
STAYING = {
    "TPUEmbeddingForServing": 1,
    "TPUEmbeddingV0": 1,
    "TPUEmbedding": 3,
    "DistributedEmbedding": 2,
}


class Serving(tf.Module):
    """An embedding of each kind of table, with rows of their own, and a layer."""

    def __init__(self, kind):
        super().__init__()
        self.look_up = SERVED[kind]()
        self.embedding = getattr(self.look_up, "embedding", self.look_up)
        if kind == "TPUEmbedding":
            self.embedding = self.look_up.__closure__[0].cell_contents
            self.embedding.build()
        self.dense = tf.Variable(WEIGHTS)
        self.serve(IDS)
        tables = self.embedding.embedding_tables
        by_name = {config.name: table for config, table in tables.items()}
        by_name["static"].assign(np.arange(16.0).reshape([8, 2]))

    @tf.function(input_signature=[tf.TensorSpec([3], tf.int64)])
    def serve(self, ids):
        rows = self.look_up({"static": ids, "growing": ids})
        return {name: one @ self.dense for name, one in rows.items()}


SERVED_ROWS = {
    "static": np.arange(16.0).reshape([8, 2])[IDS] @ WEIGHTS,
    "growing": np.full([3, 2], 0.25) @ WEIGHTS,
}


def _assert_serves(concrete, staying, how="v2"):
    frozen = FREEZE[how](concrete)
    found = _frozen_call(frozen, concrete, IDS)
    for name, one in zip(sorted(SERVED_ROWS), found, strict=True):
        np.testing.assert_allclose(one, SERVED_ROWS[name], 1e-6)
    assert _resources(frozen) == staying


@pytest.mark.parametrize("how", ["v2", "control flow kept", "inlined"])
@pytest.mark.parametrize("kind", STAYING)
def test_a_saved_embedding_is_frozen(kind, how, tmp_path):
    module = Serving(kind)
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    loaded = tf.saved_model.load(str(tmp_path))
    _assert_serves(loaded.signatures["serving_default"], STAYING[kind], how)


@pytest.mark.parametrize("kind", STAYING)
def test_what_was_loaded_and_saved_again_is_frozen(kind, tmp_path):
    module = Serving(kind)
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.serve)
    again = tf.saved_model.load(str(tmp_path / "1"))
    tf.saved_model.save(again, str(tmp_path / "2"), signatures=again.signatures)
    loaded = tf.saved_model.load(str(tmp_path / "2"))
    _assert_serves(loaded.signatures["serving_default"], STAYING[kind])


def test_a_saved_embedding_alone_is_frozen(tmp_path):
    module = Serving("TPUEmbedding")
    tf.saved_model.save(
        module.embedding, str(tmp_path), signatures=_functions_of(module)
    )
    loaded = tf.saved_model.load(str(tmp_path))
    frozen = FREEZE["v2"](loaded.signatures["serving_default"])
    found = _frozen_call(frozen, loaded.signatures["serving_default"], IDS)
    expected = np.arange(16.0).reshape([8, 2])[IDS]
    np.testing.assert_allclose(found[1], expected)


def _functions_of(module):
    return tf.function(
        lambda ids: module.look_up({"static": ids, "growing": ids}),
        input_signature=[tf.TensorSpec([3], tf.int64)],
    ).get_concrete_function()


def test_a_static_table_that_tensorflow_reads_is_a_constant(tmp_path):
    module = Serving("TPUEmbedding")
    static = next(
        table
        for config, table in module.embedding.embedding_tables.items()
        if config.name == "static"
    )
    other = tf.Module()
    other.embedding = module.embedding
    other.serve = tf.function(
        lambda ids: tf.gather(static, ids), input_signature=[SPEC]
    )
    tf.saved_model.save(other, str(tmp_path), signatures=other.serve)
    loaded = tf.saved_model.load(str(tmp_path))
    frozen = FREEZE["v2"](loaded.signatures["serving_default"])
    assert _resources(frozen) == 0
    (found,) = _frozen_call(frozen, loaded.signatures["serving_default"], IDS)
    np.testing.assert_allclose(found, np.arange(16.0).reshape([8, 2])[IDS])


@pytest.mark.parametrize("dense", [True, False])
def test_an_exported_model_of_a_layer_of_all_features_is_frozen(
    dense, tmp_path
):
    layer = SERVED["DistributedEmbedding"]()
    inputs = {
        name: keras.Input([], dtype="int64", name=name)
        for name in ("static", "growing")
    }
    outputs = layer(inputs)
    if dense:
        outputs = keras.layers.Dense(3)(
            keras.layers.Concatenate()(list(outputs.values()))
        )
    model = keras.Model(inputs, outputs)
    ids = {"static": IDS, "growing": IDS}
    layer.get_embedding_tables()["static"].assign(
        np.arange(16.0).reshape([8, 2])
    )
    expected = model(ids)
    model.export(str(tmp_path), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))
    concrete = loaded.signatures["serving_default"]

    frozen = FREEZE["v2"](concrete)

    found = _frozen_call(frozen, concrete, IDS, IDS)
    order = sorted(expected) if isinstance(expected, dict) else None
    wanted = [expected[name] for name in order] if order else [expected]
    for one, rows in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, rows, 1e-6)
    assert _resources(frozen) == 2


def test_a_saved_layer_serves_under_a_strategy(tmp_path):
    module = Serving("DistributedEmbedding")
    tf.saved_model.save(module, str(tmp_path), signatures=module.serve)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        loaded = tf.saved_model.load(str(tmp_path))
    found = strategy.run(loaded.serve, [IDS])
    for name, rows in SERVED_ROWS.items():
        np.testing.assert_allclose(found[name], rows, 1e-6)


def test_a_frozen_graph_of_tensorflow_1_finds_the_table_of_its_session():
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        table = de.get_variable("t", dim=2, initializer=0.5)
        dense = tf.compat.v1.get_variable("dense", initializer=WEIGHTS)
        ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
        rows = de.embedding_lookup(table, ids, name="q")
        tf.identity(rows @ dense, name="out")
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(table.upsert(IDS.numpy()[:2], ROWS[:2]))
        frozen = tf.compat.v1.graph_util.convert_variables_to_constants(
            session, graph.as_graph_def(), ["out"]
        )
        tf.import_graph_def(frozen, name="frozen")
        found = session.run("frozen/out:0", {"frozen/ids:0": IDS.numpy()})
    assert "VarHandleOp" not in {node.op for node in frozen.node}
    np.testing.assert_allclose(found, DENSE)


def test_gradients_and_steps_pass_through_functions_as_before():
    program = Program()
    optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(1.0))
    loss = tf.function(lambda ids: tf.reduce_sum(program.look_up(ids)))
    outer = tf.function(lambda ids: 2.0 * loss(ids))
    with tf.GradientTape() as tape:
        value = outer(IDS)
    (watched,) = tape.watched_variables()
    assert watched is program.table
    gradient = tape.gradient(value, watched)
    optimizer.apply_gradients([(gradient, watched)])
    np.testing.assert_allclose(program.table.lookup(IDS), ROWS - 2.0)
