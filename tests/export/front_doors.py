"""SavedModels of the front doors, with inputs of which some have no row."""

from __future__ import annotations

import pathlib

import keras
import numpy as np
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de

ROWS = 400
_KEYS = np.random.default_rng(0).integers(-(2**62), 2**62, ROWS)
# One in ten has no row; some of them are small, some negative.
_ASKED = np.concatenate([_KEYS[:90], np.arange(-5, 5)])


class _Of(tf.Module):
    """A model with what it reads."""

    def __init__(self, *tables):
        super().__init__()
        self.tables = list(tables)


def _save(model, path, function, spec, more=None):
    model.serve = tf.function(function, input_signature=[spec])
    for name, other in (more or {}).items():
        setattr(model, name, other)
    tf.saved_model.save(
        model, path, signatures={"serving_default": model.serve}
    )


def _ids(dtype=tf.int64):
    return tf.TensorSpec([None], dtype, "ids")


def _normal(shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def variable(path):
    """`Variable.lookup` with two shards, and a function that trains."""
    table = de.Variable(
        dim=8,
        name="plain",
        devices=["/CPU:0"] * 2,
        initializer=keras.initializers.TruncatedNormal(stddev=0.1, seed=3),
    )
    table.upsert(tf.constant(_KEYS), _normal([ROWS, 8]))

    @tf.function(input_signature=[_ids()])
    def train(ids):
        table.upsert(ids, tf.zeros([tf.size(ids), 8]))

    _save(
        _Of(table),
        path,
        lambda ids: {"rows": table.lookup(ids)},
        _ids(),
        {"train": train},
    )
    return {"ids": _ASKED}


def nested(path):
    """Bags and rows, in a function in a branch, a While and a Case.

    A partitioner deals the rows of the bags, and keys that were not admitted
    read a number.
    """
    bags = de.Variable(
        dim=4,
        name="bags",
        devices=["/CPU:0"] * 3,
        partitioner=lambda keys, count: tf.cast(keys % count, tf.int32),
        admission=tfembed.policies.CountAdmission(2, value=0.5),
    )
    ones = tfembed.HashTable(
        5, name="ones", initializer=keras.initializers.RandomNormal(0.1, 0.5)
    )
    bags.upsert(tf.constant(_KEYS), _normal([ROWS, 4]))
    ones.upsert(tf.constant(_KEYS), _normal([ROWS, 5]))
    inner = tf.function(lambda ids: ones.lookup(ids)[0])

    def serve(ids):
        lengths = tf.repeat([3, 0, 1, 6], 10)
        ragged = tf.RaggedTensor.from_row_lengths(ids, lengths)
        weights = tf.cast(ids % 7, tf.float32) / 3 - 0.5
        outputs = {
            f"bags_{how}": de.embedding_lookup_sparse(
                bags, ragged.to_sparse(), None, combiner=how
            )
            for how in ("sum", "mean", "sqrtn")
        }
        outputs["weighted"] = de.safe_embedding_lookup_sparse(
            bags,
            ragged.to_sparse(),
            ragged.with_values(weights).to_sparse(),
            combiner="mean",
        )
        outputs["branch"] = tf.cond(
            tf.size(ids) > 2, lambda: inner(ids), lambda: tf.zeros([0, 5])
        )
        _, outputs["loop"] = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, total: (i + 1, total + inner(ids)),
            [0, tf.zeros([100, 5])],
        )
        outputs["case"] = tf.switch_case(
            tf.size(ids) % 2, [lambda: inner(ids), lambda: -inner(ids)]
        )
        return outputs

    _save(_Of(bags, ones), path, serve, _ids())
    return {"ids": _ASKED}


def strings(path):
    """Strings of all lengths, with rows that are drawn by their bytes.

    A hash deals strings to shards, as a partitioner does.
    """
    table = tfembed.HashTable(
        3,
        key_dtype=tf.string,
        devices=["/CPU:0"] * 2,
        name="words",
        initializer=keras.initializers.RandomUniform(-1, 1),
    )
    words = [b"w" * i + b"%d" % (i % 3) for i in range(40)]
    table.upsert(tf.constant(words), _normal([40, 3]))
    asked = [
        *words[:20],
        b"",
        b"a",
        b"\0",
        b"\0\0",
        b"stranger" * 3,
        b"12345678",
    ]

    def serve(ids):
        rows, exists = table.lookup(ids)
        return {"rows": rows, "exists": exists}

    _save(_Of(table), path, serve, _ids(tf.string))
    return {"ids": np.array(asked, object)}


def other_dtypes(path):
    """Keys and rows of every dtype; an empty table; constant rows."""

    def table_of(keys, values):
        return de.Variable(
            key_dtype=keys,
            value_dtype=values,
            dim=3,
            name=f"{keys}_{values}",
            initializer=(
                keras.initializers.RandomNormal(0.0, 2.0, seed=9)
                if tf.as_dtype(values).is_floating
                else keras.initializers.Ones()
            ),
        )

    tables = [
        *(
            table_of("int64", values)
            for values in (
                "float16", "bfloat16", "float64", "int8", "int32", "int64",
            )
        ),
        table_of("int32", "float32"),
        table_of("string", "bool"),
    ]  # fmt: skip

    def keys(table, ids):
        if table.key_dtype == tf.string:
            return tf.strings.as_string(ids)
        return tf.cast(ids, table.key_dtype)

    for table in tables:
        values = tf.cast(_normal([20, 3]) * 9, table.value_dtype)
        table.upsert(keys(table, tf.range(20)), values)
    empty = tfembed.HashTable(2, name="empty", initializer=0.25)

    def serve(ids):
        outputs = {t.name: t.lookup(keys(t, ids)) for t in tables}
        # NumPy has no bfloat16.
        narrow = outputs["int64_bfloat16"]
        outputs["int64_bfloat16"] = tf.cast(narrow, tf.float32)
        outputs["empty"] = empty.lookup(tf.cast(ids, tf.int64))[0]
        return outputs

    _save(_Of(empty, *tables), path, serve, _ids(tf.int32))
    return {"ids": np.arange(-5, 25, dtype=np.int32)}


def keras_layers(path):
    """`tfembed.keras.layers`, strings and integers, by `model.export`."""
    user = keras.Input((), dtype="string", name="user")
    item = keras.Input((5,), dtype="int64", name="item")
    layers = tfembed.keras.layers
    rows = keras.layers.Concatenate()(
        [
            layers.Embedding(4, name="users")(user),
            keras.layers.Flatten()(
                layers.Embedding(8, name="items", mask_zero=True)(item)
            ),
        ]
    )
    model = keras.Model([user, item], keras.layers.Dense(1, name="score")(rows))
    model.compile("adam", "mse")
    users = np.array([b"u%d" % i for i in range(100)], object)
    items = np.random.default_rng(2).integers(0, 300, [100, 5])
    model.fit(
        {"user": tf.constant(users), "item": items},
        np.ones(100),
        verbose=0,
        batch_size=50,
    )
    model.export(path, verbose=False)
    return {
        "user": np.array([b"u%d" % i for i in range(90, 110)], object),
        "item": np.arange(200, 300).reshape(20, 5),
    }


def all_features_in_one_layer(path):
    """`DistributedEmbedding`: two tables, one for a sequence as well."""
    tables = [
        tfembed.TableConfig(
            vocabulary_size=None,
            dim=dim,
            name=f"of {dim}",
            optimizer=tfembed.Adagrad(0.1),
            combiner="mean",
        )
        for dim in (4, 8)
    ]
    features = {
        name: tfembed.FeatureConfig(
            table=tables[table], name=name, max_sequence_length=length
        )
        for name, table, length in (("a", 0, 0), ("b", 1, 0), ("c", 1, 3))
    }
    widths = {"a": 3, "b": 1, "c": 5}
    inputs = {
        name: keras.Input((width,), dtype="int64", name=name)
        for name, width in widths.items()
    }
    rows = tfembed.keras.layers.DistributedEmbedding(features)(inputs)
    rows = [keras.layers.Flatten()(rows[name]) for name in "abc"]
    model = keras.Model(
        inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(rows))
    )
    model.compile("adam", "mse")
    drawn = np.random.default_rng(4)
    given = {n: drawn.integers(0, 99, [64, w]) for n, w in widths.items()}
    model.fit(given, np.ones(64), verbose=0, batch_size=32)
    model.export(path, verbose=False)
    return {n: drawn.integers(0, 150, [20, w]) for n, w in widths.items()}


def layers_of_dynamic_embedding(path):
    """A layer of `dynamic_embedding.keras`, by `model.export`."""
    from tfembed.dynamic_embedding.keras import layers

    ids = keras.Input((3,), dtype="int64", name="ids")
    rows = layers.SquashedEmbedding(embedding_size=4, name="squashed")(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile(
        de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.01)), "mse"
    )
    given = np.random.default_rng(3).integers(0, 300, [100, 3])
    model.fit(given, np.ones(100), verbose=0, batch_size=50)
    model.export(path, verbose=False)
    return {"ids": np.arange(280, 340).reshape(20, 3)}


def embedding(path):
    """Tables of `TPUEmbedding`, by `serving_embedding_lookup`.

    One feature is a sequence, one has a fixed vocabulary.
    """
    tables = [
        tfembed.TableConfig(
            vocabulary_size=size,
            dim=8,
            optimizer=tfembed.Adagrad(0.1),
            name=combiner,
            combiner=combiner,
        )
        for combiner, size in (("mean", None), ("sqrtn", None), ("sum", 200))
    ]
    features = {
        "a": tfembed.FeatureConfig(table=tables[0], name="a"),
        "b": tfembed.FeatureConfig(table=tables[1], name="b"),
        "c": tfembed.FeatureConfig(table=tables[2], name="c"),
        "s": tfembed.FeatureConfig(
            table=tables[1], name="s", max_sequence_length=3
        ),
    }
    trained = tfembed.TPUEmbedding(features, tfembed.Adagrad(0.1))
    batch = {
        "a": tf.range(100, dtype=tf.int64),
        "b": tf.RaggedTensor.from_row_lengths(
            tf.range(150, dtype=tf.int64), [1, 2] * 50
        ),
    }
    batch |= {"c": batch["a"], "s": batch["b"]}
    trained.enqueue(batch, training=True)
    activations = trained.dequeue()
    trained.apply_gradients(tf.nest.map_structure(tf.ones_like, activations))
    held = trained.embedding_tables
    model = _Of(*held.values())

    def serve(ids):
        batch = {
            "a": ids,
            "b": tf.RaggedTensor.from_row_lengths(ids, [3, 0, 7, 10]),
        }
        batch |= {"c": batch["a"], "s": batch["b"]}
        return tfembed.serving_embedding_lookup(batch, None, held, features)

    _save(model, path, serve, _ids())
    return {"ids": np.arange(90, 110)}


def graph(path):
    """A graph of TensorFlow 1: sums, strings, policies, and a dense weight."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        numbers = de.get_variable(
            "numbers",
            dim=4,
            devices=["/CPU:0"] * 2,
            initializer=v1.random_normal_initializer(0, 0.1, seed=3),
        )
        words = de.get_variable(
            "words",
            key_dtype=tf.string,
            dim=3,
            initializer=v1.random_uniform_initializer(-1, 1),
            admission=tfembed.policies.CountAdmission(2, value=0.5),
        )
        ids = v1.placeholder(tf.int64, [None], "ids")
        weight = v1.get_variable("weight", [4, 2])
        splits = tf.range(0, tf.size(ids) + 1, 5)
        bags = tf.RaggedTensor.from_row_splits(ids, splits).to_sparse()
        outputs = {
            "rows": de.embedding_lookup(numbers, ids) @ weight,
            "bags": de.embedding_lookup_sparse(numbers, bags, None),
            "words": words.lookup(tf.strings.as_string(ids)),
        }
        session.run(v1.global_variables_initializer())
        session.run(numbers.upsert(_KEYS, _normal([ROWS, 4])))
        texts = tf.strings.as_string(_KEYS)
        session.run(words.upsert(texts, _normal([ROWS, 3])))
        v1.saved_model.simple_save(session, path, {"ids": ids}, outputs)
    return {"ids": _ASKED}


def estimator(path):
    """An export of an Estimator, which trained the table."""
    v1 = tf.compat.v1
    given = {"ids": np.arange(200)}

    def model_fn(features, labels, mode):
        table = de.get_variable("table", dim=4, initializer=0.5)
        rows = de.embedding_lookup(table, features["ids"], name="rows")
        if mode == tfembed.estimator.ModeKeys.PREDICT:
            return tfembed.estimator.EstimatorSpec(mode, {"rows": rows})
        loss = tf.reduce_sum((rows - labels) ** 2)
        optimizer = de.DynamicEmbeddingOptimizer(v1.train.AdamOptimizer(0.1))
        step = v1.train.get_global_step()
        return tfembed.estimator.EstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss, step)
        )

    def input_fn():
        return tf.data.Dataset.from_tensors((given, _normal([200, 4])))

    model = tfembed.estimator.Estimator(model_fn, f"{path}-trained")
    model.train(input_fn)
    receiver_fn = tfembed.estimator.export.build_raw_serving_input_receiver_fn(
        {"ids": tf.zeros([7], tf.int64)}
    )
    folder = model.export_saved_model(f"{path}-exports", receiver_fn)
    pathlib.Path(tf.compat.as_str(folder)).rename(path)
    return {"ids": np.arange(180, 220)}


ALL = (
    variable,
    nested,
    strings,
    other_dtypes,
    keras_layers,
    all_features_in_one_layer,
    layers_of_dynamic_embedding,
    embedding,
    graph,
    estimator,
)
