"""Names that reach files: nothing that was made before is in them.

No rows are found again by a name from a counter (`auto_name` of Keras, `unique_name`
of TensorFlow): in slots' names, raw files, tf.train.Checkpoint, Savers, .keras and
.weights.h5 files, SavedModels, optimizers in front of tables.
"""

from __future__ import annotations

import json

import keras
import pytest
import tensorflow as tf

import fresh_process
import tfembed.dynamic_embedding as de
from dynamic_embedding.optimizer_makers import V1, K, legacy

# What a process does first decides what its counters say.
_PROGRAM = """
    import json, sys
    import keras, numpy, tensorflow as tf
    import tfembed.dynamic_embedding as de

    folder, others = sys.argv[1], int(sys.argv[2])
    v1, K = tf.compat.v1, keras.optimizers
    ids = numpy.array([[1, 2], [3, 4], [5, 6], [7, 8]])

    def model(number=""):
        inputs = keras.Input((2,), dtype="int64")
        rows = de.keras.layers.SquashedEmbedding(3, name=f"users{number}")(inputs)
        made = keras.Model(inputs, keras.layers.Dense(1)(rows))
        made.compile(de.DynamicEmbeddingOptimizer(K.Adagrad(0.1)), loss="mse")
        made.fit(ids, numpy.ones(4), batch_size=4, epochs=2, verbose=0)
        return made

    def table(name, factor):
        v = de.Variable(dim=2, name=name, initializer=1.0)
        optimizer = de.DynamicEmbeddingOptimizer(K.Adagrad(0.1))
        gradient = tf.fill([2, 2], float(factor))
        slices = tf.IndexedSlices(gradient, tf.constant([1, 2], tf.int64))
        optimizer.apply_gradients([(slices, v)])
        return v, optimizer

    for i in range(others):
        model(i), table("other", 9), K.Adam(), K.Adagrad(), keras.layers.Dense(1)
        tf.Variable(1.0), tf.Module(), tf.name_scope("users")
"""
_SAVE = """
    (a, first), (b, second) = table("a", 1), table("b", 2)
    mine = de.create_slots(a, 0.0, "mine", first.name, False)
    mine.upsert([1], [[5.0, 6.0]])
    for v in (a, mine):
        v.save_to_file_system(f"{folder}/raw")
    tf.train.Checkpoint(a=a, b=b, first=first, second=second).write(
        f"{folder}/checkpoint")
    saved = model()
    saved.save(f"{folder}/model.keras")
    saved.save_weights(f"{folder}/model.weights.h5")
    saved.export(f"{folder}/served", verbose=False)
    names = [slot.name for v, o in ((a, first), (b, second))
             for slot in v.get_slot_variables(o)]
    shards = [s.name for s in a.get_slot_variables(first)[0].tables]
    with tf.Graph().as_default(), v1.Session() as session:
        users = de.Variable(dim=2, name="users", initializer=1.0)
        rows = de.embedding_lookup(users, tf.constant([3], tf.int64))
        de.DynamicEmbeddingOptimizer(v1.train.AdagradOptimizer(0.1)).minimize(
            tf.reduce_sum(rows))
        session.run(users.upsert(tf.constant([3], tf.int64), [[7.0, 8.0]]))
        v1.train.Saver([users]).save(session, f"{folder}/saver")
    print(json.dumps([names, shards, saved(ids).numpy().ravel().tolist(),
                      first.name]))
"""
_RESTORE = """
    def trained(optimizer):
        return table("untrained", 1)

    a, b = (de.Variable(dim=2, name=n, initializer=1.0) for n in "ab")
    first, second = (de.DynamicEmbeddingOptimizer(K.Adagrad(0.1)) for _ in "ab")
    raw = de.Variable(dim=2, name="a")
    raw.load_from_file_system(f"{folder}/raw")
    mine = de.create_slots(a, 0.0, "mine", first.name, False)
    mine.load_from_file_system(f"{folder}/raw")
    first.build([a]), second.build([b])
    tf.train.Checkpoint(a=a, b=b, first=first, second=second).read(
        f"{folder}/checkpoint").assert_existing_objects_matched()
    slots = [v.get_slot_variables(o)[0] for v, o in ((a, first), (b, second))]
    loaded = keras.saving.load_model(f"{folder}/model.keras")
    again = model()
    again.load_weights(f"{folder}/model.weights.h5")
    served = tf.saved_model.load(f"{folder}/served")
    with tf.Graph().as_default(), v1.Session() as session:
        de.Variable(dim=2, name="another")
        v1.get_variable("w", [1])
        users = de.Variable(dim=2, name="users", initializer=1.0)
        rows = de.embedding_lookup(users, tf.constant([3], tf.int64))
        de.DynamicEmbeddingOptimizer(v1.train.AdagradOptimizer(0.1)).minimize(
            tf.reduce_sum(rows))
        v1.train.Saver([users]).restore(session, f"{folder}/saver")
        in_graph = session.run(users.lookup(tf.constant([3], tf.int64)))
    print(json.dumps({
        "slots": [s.name for s in slots],
        "of loaded": [s.name for s in loaded.layers[1].optimizer_vars],
        "raw": raw.lookup([1]).numpy().tolist(),
        "mine": mine.lookup([1]).numpy().tolist(),
        "accumulators": [s.lookup([2]).numpy().tolist() for s in slots],
        "models": [m(ids).numpy().ravel().tolist() for m in (loaded, again)]
            + [served.serve(ids).numpy().ravel().tolist()],
        "graph": in_graph.tolist()}))
"""


@pytest.mark.slow
def test_what_one_process_saves_another_finds_that_made_others_first(tmp_path):
    names, shards, values, called = json.loads(
        fresh_process.output_of(_PROGRAM + _SAVE, tmp_path, 1)
    )
    found = json.loads(
        fresh_process.output_of(_PROGRAM + _RESTORE, tmp_path, 3)
    )

    assert called == "adagrad"
    assert names == ["a/adagrad/accumulator", "b/adagrad/accumulator"]
    assert shards == ["a_adagrad_accumulator_mht_1of1"]
    assert found["slots"] == names
    assert found["of loaded"] == ["users-parameter/adagrad/accumulator"]
    # The gradients were 1 and 2, the accumulators began at 0.1.
    for slot, begun in zip(found["accumulators"], (1.1, 4.1), strict=True):
        assert slot == [pytest.approx([begun] * 2, rel=1e-6)]
    assert found["raw"] == [pytest.approx([0.904654] * 2, rel=1e-4)]
    assert found["mine"] == [[5.0, 6.0]]
    assert found["graph"] == [[7.0, 8.0]]
    for one in found["models"]:
        assert one == pytest.approx(values, rel=1e-5)


@keras.saving.register_keras_serializable("tests")
class Mine(keras.optimizers.Optimizer):
    """Keras numbers optimizers of a user's class in all of its versions."""

    def __init__(self, learning_rate=0.1, **options):
        super().__init__(learning_rate, **options)

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient * learning_rate)


class Derived(keras.optimizers.Adam):
    """Its constructor is Adam's, and Keras 3.12 gives it Adam's name."""


@pytest.mark.parametrize("make", [K.Adagrad, K.AdamW, K.RMSprop, K.SGD, Mine])
def test_the_front_of_an_optimizer_has_no_number_either(make):
    names = {de.DynamicEmbeddingOptimizer(make()).name for _ in range(3)}
    assert names == {"SGD" if make is K.SGD else make.__name__.lower()}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (K.SGD, "SGD"),
        (K.Adam, "adam"),
        (K.AdamW, "adamw"),
        (K.Adagrad, "adagrad"),
        (K.RMSprop, "rmsprop"),
        (Derived, "adam"),
        (Mine, "mine"),
        (lambda: K.Adagrad(name=None), "adagrad"),
        (lambda: K.Adagrad(name="adagrad"), "adagrad"),
        (lambda: K.Adagrad(name="another_2"), "another_2"),
        (lambda: K.Adagrad(name="users"), "users"),
        (lambda: K.Adagrad(name="adam_1"), "adam_1"),
        (lambda: V1.AdagradOptimizer(0.1), "Adagrad"),
        (lambda: legacy().Adam(), "Adam"),
        (lambda: legacy().Adam(name="adam_1"), "adam_1"),
    ],
)
def test_an_optimizer_is_called_the_same_however_many_were_made(make, name):
    optimizers = [de.DynamicEmbeddingOptimizer(make()) for _ in range(3)]
    tables = [de.Variable(dim=2, name="user") for _ in optimizers]
    for table, optimizer in zip(tables, optimizers, strict=True):
        gradient = tf.IndexedSlices([[1.0, 1.0]], tf.constant([1], tf.int64))
        optimizer.apply_gradients([(gradient, table)])
        for slot in table.get_slot_variables(optimizer):
            assert slot.name.startswith(f"user/{name}/")


def test_a_name_that_was_given_stays_with_its_number():
    optimizer = K.Adagrad(name="adagrad_98765")
    assert de.DynamicEmbeddingOptimizer(optimizer).name == "adagrad_98765"


@pytest.mark.parametrize("make", [K.Adagrad, Mine])
def test_a_front_s_config_has_no_number_in_it(make):
    front = [de.DynamicEmbeddingOptimizer(make()) for _ in range(2)][-1]
    config = front.get_config()
    name = make.__name__.lower()
    assert config["inner_optimizer"]["config"]["name"] == name
    again = type(front).from_config(config)
    assert (again.name, again.inner_optimizer.name) == (name, name)


def test_an_optimizer_of_a_numbered_one_s_config_has_its_name_for_files():
    optimizer = [Mine() for _ in range(2)][-1]
    again = Mine.from_config(optimizer.get_config())
    assert again.name == optimizer.name != "mine"
    for one in (again, optimizer):
        assert de.DynamicEmbeddingOptimizer(one).name == "mine"


def test_a_graph_s_table_is_called_the_same_whatever_was_made_before_it():
    def names(others):
        with tf.Graph().as_default():
            for _ in range(others):
                with tf.name_scope("model"):
                    tf.constant(1, name="tfembed_users")
                de.Variable(dim=2, name="another")
            with tf.name_scope("model"):
                tables = [de.Variable(dim=2, name="users") for _ in range(2)]
            handles = [v.handle.op for v in tables]
            return [op.get_attr("shared_name") for op in handles]

    assert names(2) == names(0)
    assert len(set(names(0))) == 2
