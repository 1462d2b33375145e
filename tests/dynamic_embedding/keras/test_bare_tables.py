"""Keras models that look up in a `Variable`, without a layer of tfembed's.

`fit` leaves no table untrained without a word: in models of all forms, in steps of
users' own, under replicas, in tf_keras, and in saved files.
"""

from __future__ import annotations

import contextlib
import warnings

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from cpu_replicas import mirrored
from tfembed.tables import StringTable

IDS = np.array([[1, 2], [3, 4]] * 4)
LABELS = np.ones([8, 1], np.float32)
NOT_TRAINED = "Table 'films' is not trained"


def table(**options):
    return de.Variable(dim=4, initializer=0.5, name="films", **options)


def bags(films, ids):
    return tf.reduce_sum(de.embedding_lookup(films, ids, name="look"), 1)


@keras.saving.register_keras_serializable("bare")
class Bags(keras.layers.Layer):
    def __init__(self, films=None, **options):
        super().__init__(**options)
        self.films = films or table()

    def get_config(self):
        return super().get_config()

    def call(self, ids):
        return bags(self.films, ids)


@keras.saving.register_keras_serializable("bare")
class Subclassed(keras.Model):
    def __init__(self, films=None, **options):
        super().__init__(**options)
        self.films = films or table()
        self.out = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, ids):
        return self.out(bags(self.films, ids))


class Sparse(Subclassed):
    def call(self, ids):
        ids = tf.sparse.from_dense(ids)
        return self.out(
            de.safe_embedding_lookup_sparse(self.films, ids, name="sparse")
        )


class ByShadow(Subclassed):
    def __init__(self, films):
        super().__init__(films)
        self.shadow = de.shadow_ops.ShadowVariable(films)

    def call(self, ids):
        rows = de.shadow_ops.embedding_lookup(self.shadow, ids)
        return self.out(tf.reduce_sum(rows, 1))


class ByLoss(Subclassed):
    def call(self, ids):
        return self.out(tf.cast(ids, tf.float32))

    def compute_loss(self, x=None, y=None, y_pred=None, *others, **options):
        del y, others, options
        return tf.reduce_mean(y_pred**2 + bags(self.films, x) ** 2)


class OwnStep(Subclassed):
    def variables_of_step(self):
        return self.trainable_variables

    def train_step(self, data):
        ids, labels = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(ids, training=True) - labels) ** 2)
        variables = self.variables_of_step()
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


class ListsItsTable(OwnStep):
    def variables_of_step(self):
        return [*self.trainable_variables, self.films]


class TwoOptimizers(Subclassed):
    def __init__(self, films):
        super().__init__(films)
        self.other = tables_too()

    def train_step(self, data):
        ids, labels = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(ids, training=True) - labels) ** 2)
        dense = self.trainable_variables
        films, of_dense = tape.gradient(loss, [self.films, dense])
        self.optimizer.apply_gradients(zip(of_dense, dense, strict=True))
        self.other.apply_gradients([(films, self.films)])
        return {"loss": loss}


def global_table(films):
    class Closed(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, ids):
            return self.out(bags(films, ids))

    return Closed()


def functional(films, layer=None):
    ids = keras.Input((2,), dtype="int64")
    rows = (layer or Bags(films))(ids)
    out = keras.layers.Dense(1, kernel_initializer="ones")(rows)
    return keras.Model(ids, out)


def by_lambda(films):
    layer = keras.layers.Lambda(
        lambda ids: bags(films, ids), output_shape=lambda shape: (shape[0], 4)
    )
    return functional(films, layer)


def sequential(films):
    return keras.Sequential(
        [
            keras.Input((2,), dtype="int64"),
            Bags(films),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )


MODELS = {
    "subclassed": Subclassed,
    "sparse": Sparse,
    "shadow": ByShadow,
    "compute_loss": ByLoss,
    "train_step": OwnStep,
    "global": global_table,
    "functional": functional,
    "Lambda": by_lambda,
    "Sequential": sequential,
}
EACH = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def tables_too():
    return de.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))


def fit(model, optimizer, **options):
    model.compile(optimizer, loss="mse", **options)
    return model.fit(IDS, LABELS, batch_size=4, verbose=0, shuffle=False)


def test_a_loss_scale_is_taken_back_for_a_table_without_a_layer():
    films = [table(), table()]
    scaled = keras.optimizers.LossScaleOptimizer(tables_too())

    for one, optimizer in zip(films, (tables_too(), scaled), strict=True):
        fit(Subclassed(one), optimizer)

    rows = [one.lookup([1, 2, 3, 4]) for one in films]
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-5)
    assert is_trained(films[1])


def is_trained(films):
    keys, rows = films.export()
    return len(keys) == 4 and bool(np.all(rows.numpy() != 0.5))


@contextlib.contextmanager
def silent():
    """Nothing may be said of tables or gradients."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(not train|radient)")
        yield


@EACH
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_trains_what_a_model_looks_up(make, run_eagerly):
    films = table()
    fit(make(films), tables_too(), run_eagerly=run_eagerly)
    assert is_trained(films)


@EACH
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_an_optimizer_that_trains_no_tables_is_told_once(make, run_eagerly):
    films = table()
    with pytest.warns(UserWarning, match=NOT_TRAINED) as said:
        fit(make(films), "sgd", run_eagerly=run_eagerly)
    texts = [str(one.message) for one in said]
    (text,) = [one for one in texts if NOT_TRAINED in one]
    assert "DynamicEmbeddingOptimizer" in text
    assert int(films.size()) == 0


def test_rows_and_kernels_become_those_of_a_dense_variable():
    films = table()
    model = functional(films)
    dense = tf.Variable(tf.fill([5, 4], 0.5))
    kernel, bias = tf.Variable(tf.ones([4, 1])), tf.Variable(tf.zeros([1]))
    for start in (0, 4):
        with tf.GradientTape() as tape:
            rows = tf.reduce_sum(tf.gather(dense, IDS[start : start + 4]), 1)
            error = rows @ kernel + bias - LABELS[start : start + 4]
            loss = tf.reduce_mean(error**2)
        moved = [dense, kernel, bias]
        for variable, gradient in zip(
            moved, tape.gradient(loss, moved), strict=True
        ):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))

    model.compile(tables_too(), loss="mse")
    model.fit(IDS, LABELS, batch_size=4, verbose=0, shuffle=False)

    np.testing.assert_allclose(films.lookup([1, 2, 3, 4]), dense[1:], rtol=1e-5)
    np.testing.assert_allclose(model.layers[-1].kernel, kernel, rtol=1e-5)


def test_train_on_batch_trains_what_a_model_looks_up():
    films = table()
    model = Subclassed(films)
    model.compile(tables_too(), loss="mse")
    model.train_on_batch(IDS, LABELS)
    assert is_trained(films)


def test_a_table_that_a_step_lists_itself_is_trained_once():
    films, other = table(), table()
    fit(ListsItsTable(films), tables_too())
    fit(OwnStep(other), tables_too())
    np.testing.assert_array_equal(
        films.lookup([1, 2, 3, 4]), other.lookup([1, 2, 3, 4])
    )


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_second_optimizer_for_tables_is_no_fault(run_eagerly):
    films = table()
    with silent():
        fit(TwoOptimizers(films), "sgd", run_eagerly=run_eagerly)
    assert is_trained(films)


def test_a_loop_of_users_own_lists_the_table_as_ever():
    films = table()
    model, optimizer = Subclassed(films), tables_too()
    with silent(), tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(tf.constant(IDS)) ** 2)
        variables = [*model.trainable_variables, films]
    assert len(variables) == 3
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    assert is_trained(films)


def test_a_table_that_two_layers_look_up_moves_once():
    films, other = table(), table()
    ids = keras.Input((2,), dtype="int64")
    out = keras.layers.Dense(1, kernel_initializer="ones")
    both = keras.Model(ids, out(Bags(films)(ids) + Bags(films)(ids)))
    layer = Bags(other)
    twice = keras.Model(
        ids,
        keras.layers.Dense(1, kernel_initializer="ones")(
            layer(ids) + layer(ids)
        ),
    )
    for model in (both, twice):
        fit_in_order(model)
    np.testing.assert_allclose(
        films.lookup([1, 2, 3, 4]), other.lookup([1, 2, 3, 4]), rtol=1e-6
    )


def fit_in_order(model):
    model.compile(tables_too(), loss="mse")
    model.fit(IDS, LABELS, batch_size=4, shuffle=False, verbose=0)


def test_a_layers_table_that_is_looked_up_beside_it_moves_once():
    class Both(keras.Model):
        def __init__(self):
            super().__init__()
            self.embed = de.keras.layers.Embedding(
                4, initializer=0.5, name="films"
            )
            self.out = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, ids):
            own = tf.reduce_sum(self.embed(ids), 1)
            return self.out(own + bags(self.embed.params, ids))

    model = Both()
    with silent():
        fit(model, tables_too())
    assert is_trained(model.embed.params)


@pytest.mark.parametrize("optimizer", [tables_too, lambda: "sgd"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_layer_that_is_frozen_leaves_its_table_alone(optimizer, when):
    films = table()
    layer = Bags(films, trainable=when == "after")
    model = functional(films, layer)
    layer.trainable = False
    with silent():
        fit(model, optimizer())
    assert int(films.size()) == 0


@pytest.mark.parametrize("optimizer", [tables_too, lambda: "sgd"])
def test_a_table_that_is_not_trainable_is_no_fault(optimizer):
    films = table(trainable=False)
    with silent():
        fit(Subclassed(films), optimizer())
    assert int(films.size()) == 0


def test_evaluation_and_prediction_say_and_insert_nothing():
    films = table()
    model = functional(films)
    model.compile("sgd", loss="mse")
    with silent():
        model.evaluate(IDS, LABELS, verbose=0)
        model.predict(IDS, verbose=0)
        model(tf.constant(IDS))
    assert int(films.size()) == 0


@pytest.mark.parametrize("make", [Subclassed, OwnStep, by_lambda])
def test_replicas_train_what_a_model_looks_up(make):
    films = table()
    with mirrored(2).scope():
        fit(make(films), tables_too())
    assert is_trained(films)


@pytest.mark.parametrize("make", [Subclassed, functional])
def test_a_file_has_the_rows_of_a_table_that_a_layer_holds(make, tmp_path):
    model = make(table())
    fit(model, tables_too())
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(
        loaded.predict(IDS, verbose=0), model.predict(IDS, verbose=0)
    )


def test_weights_of_a_file_go_on_where_they_were(tmp_path):
    model = functional(table())
    fit(model, tables_too())
    model.save_weights(tmp_path / "m.weights.h5")
    other = functional(table())
    other.compile(tables_too(), loss="mse")
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(
        other.predict(IDS, verbose=0), model.predict(IDS, verbose=0)
    )


def test_a_file_leaves_a_table_that_no_layer_holds_alone(tmp_path):
    films = table()
    model = by_lambda(films)
    fit(model, tables_too())
    model.save_weights(tmp_path / "m.weights.h5")
    films.upsert([1], tf.zeros([1, 4]))
    model.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(films.lookup([1]), np.zeros([1, 4]))


READS = {
    "export": lambda table, ids: (
        tf.reduce_sum(table.export()[1]) + tf.zeros(tf.shape(ids))
    ),
    # Keras 3.15 traces the model with floats, too.
    "lookup": lambda table, ids: tf.reduce_sum(
        table.lookup(tf.cast(ids, tf.int64)), -1
    ),
    "by key": lambda table, ids: tf.reduce_sum(table[ids], -1),
    "size": lambda table, ids: tf.fill(
        tf.shape(ids), tf.cast(table.size(), tf.float32)
    ),
}


def words_of_table():
    names = StringTable(1, name="names")
    names.upsert([0, 1], [["a"], ["b"]])
    return names


def filled(kind):
    if kind is None:
        return words_of_table()
    table = kind(dim=2, initializer=0.5, name="read")
    table.upsert(tf.range(3, dtype=tf.int64), tf.ones([3, 2]))
    return table


# How a model's table is made, and read.
READERS = {
    **{name: (de.Variable, read) for name, read in READS.items()},
    "shard": (
        de.Variable,
        lambda table, ids: tf.reduce_sum(
            table.tables[0].lookup(tf.cast(ids, tf.int64)), -1
        ),
    ),
    "HashTable": (tfembed.HashTable, READS["by key"]),
    "export of a HashTable": (tfembed.HashTable, READS["export"]),
    "StringTable": (
        None,
        lambda table, ids: tf.strings.length(
            table.lookup(tf.cast(ids, tf.int64))[0][:, 0]
        ),
    ),
}


EACH_READER = pytest.mark.parametrize(
    ("kind", "read"), READERS.values(), ids=list(READERS)
)


class Reader(keras.Model):
    def __init__(self, table, read):
        super().__init__()
        self.rows = table
        self.read = read

    def call(self, ids):
        return self.read(self.rows, ids)


@EACH_READER
def test_a_model_that_reads_a_table_is_exported_with_its_rows(
    kind, read, tmp_path
):
    reader = Reader(filled(kind), read)
    ids = tf.constant([0, 1, 7], tf.int64)
    expected = reader(ids)
    reader.export(
        str(tmp_path),
        input_signature=[tf.TensorSpec([None], tf.int64, name="ids")],
        verbose=False,
    )

    served = tf.saved_model.load(str(tmp_path)).serve(ids)
    np.testing.assert_allclose(served, expected)


def emptied(table):
    table.remove(table.export()[0])
    return table


@EACH_READER
def test_weights_have_the_rows_of_a_table_that_is_only_read(
    kind, read, tmp_path
):
    reader, other = (Reader(filled(kind), read) for _ in range(2))
    ids = tf.constant([0, 1, 7], tf.int64)
    expected = reader(ids)
    emptied(other.rows)
    other(ids)

    reader.save_weights(tmp_path / "m.weights.h5")
    other.load_weights(tmp_path / "m.weights.h5")

    np.testing.assert_allclose(other(ids), expected)


@keras.saving.register_keras_serializable("bare")
class Titles(keras.layers.Layer):
    """Reads two tables of one width, in another order when it trains."""

    def __init__(self, **options):
        super().__init__(**options)
        self.tables = {
            name: tfembed.HashTable(dim=2, initializer=0.0, name=name)
            for name in ("films", "songs")
        }
        self.inner = Inner()
        self.inner.built = True

    def call(self, ids, training=None):
        names = sorted(self.tables, reverse=bool(training))
        found = {name: self.tables[name].lookup(ids)[0] for name in names}
        return (
            found["films"]
            - found["songs"]
            + self.inner(ids, tables=self.tables)
        )


@keras.saving.register_keras_serializable("bare")
class Inner(keras.layers.Layer):
    def call(self, ids, tables):
        return tables["films"].lookup(ids)[0]


def test_a_file_has_the_rows_of_tables_that_are_only_read(tmp_path):
    ids = keras.Input((), dtype="int64")
    layer = Titles()
    model = keras.Model(ids, layer(ids))
    layer.tables["films"].upsert([1], [[1.0, 2.0]])
    layer.tables["songs"].upsert([1], [[30.0, 40.0]])
    some = np.array([1, 2])
    model(tf.constant(some), training=True)

    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")

    assert loaded.layers[-1].tables["films"].size() == 1
    np.testing.assert_array_equal(
        loaded.predict(some, verbose=0), [[-28.0, -36.0], [0.0, 0.0]]
    )


def test_a_file_has_a_table_that_is_trained_and_read_once(tmp_path):
    class Both(Subclassed):
        def call(self, ids):
            read = tf.reduce_sum(self.films.lookup(tf.cast(ids, tf.int64)), 1)
            return self.out(read + bags(self.films, ids))

    model, other = Both(table()), Both(table())
    fit(model, tables_too())
    fit(other, tables_too())
    other.films.upsert([1], tf.zeros([1, 4]))
    path = tmp_path / "m.weights.h5"
    model.save_weights(path)

    other.load_weights(path)

    np.testing.assert_array_equal(
        other.films.lookup([1]), model.films.lookup([1])
    )
    with h5py.File(path) as file:
        names = []
        file.visit(names.append)
    assert sum("rows.index" in name for name in names) == 1


class Popular(de.keras.layers.Embedding):
    """Looks its own table up, and reads another one."""

    def __init__(self):
        super().__init__(2, initializer=0.0, name="own")
        self.counts = tfembed.HashTable(dim=2, initializer=0.0, name="counts")

    def call(self, ids):
        return super().call(ids) + self.counts.lookup(ids)[0]


def test_a_layer_that_derives_from_ours_saves_what_it_reads_too(tmp_path):
    layers = [Popular() for _ in range(2)]
    ids = tf.constant([1, 2], tf.int64)
    inputs = keras.Input((), dtype="int64")
    model, other = (keras.Model(inputs, layer(inputs)) for layer in layers)
    layers[0].params.upsert(ids, tf.ones([2, 2]))
    layers[0].counts.upsert(ids, 2 * tf.ones([2, 2]))

    model.save_weights(tmp_path / "m.weights.h5")
    other.load_weights(tmp_path / "m.weights.h5")

    np.testing.assert_array_equal(other(ids), np.full([2, 2], 3.0))


class Passing(keras.layers.Layer):
    """Has a table, which another layer looks up."""

    def __init__(self):
        super().__init__()
        self.films = table()
        films = self.films
        self.inner = keras.layers.Lambda(
            lambda ids: bags(films, ids),
            output_shape=lambda shape: (shape[0], 4),
        )

    def call(self, ids):
        return self.inner(ids)


def test_a_file_has_a_trained_table_that_an_inner_layer_looks_up(tmp_path):
    layers = [Passing() for _ in range(2)]
    model, other = (functional(None, layer) for layer in layers)
    fit(model, tables_too())
    other.compile(tables_too(), loss="mse")
    other.optimizer.build(other.trainable_variables)

    model.save_weights(tmp_path / "m.weights.h5")
    other.load_weights(tmp_path / "m.weights.h5")

    assert is_trained(layers[1].films)
