"""`tfembed.keras.layers.Embedding`, trained by plain Keras optimizers."""

from __future__ import annotations

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from keras_models import rows_of
from tfembed import errors

Embedding = tfembed.keras.layers.Embedding

WIDTH, SIZE = 4, 20
HALF = keras.initializers.Constant(0.5)
NAMES = tf.constant(["ann", "bob", "", "ann", "cid", "bob"] * 4)
TARGETS = np.arange(24, dtype=np.float32)[:, None] % 5


@pytest.fixture(autouse=True)
def _own_names():
    keras.backend.clear_session()


class DenseTable(keras.layers.Layer):
    """The oracle: all rows in one weight, whose gradient is dense."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(SIZE, WIDTH), initializer=HALF)

    def call(self, ids):
        return keras.ops.matmul(keras.ops.one_hot(ids, SIZE), self.rows)


def two_towers(first, second):
    left, right = (keras.Input((3,), dtype="int64") for _ in range(2))
    rows = [
        keras.layers.Flatten()(layer(ids))
        for layer, ids in ((first, left), (second, right))
    ]
    weights = keras.initializers.Constant(0.3)
    out = keras.layers.Dense(1, kernel_initializer=weights)
    return keras.Model([left, right], out(keras.layers.Concatenate()(rows)))


def losses(model, optimizer, **options):
    rng = np.random.default_rng(0)
    ids = rng.integers(1, SIZE, (32, 3))
    targets = rng.normal(size=(32, 1)).astype(np.float32)
    model.compile(optimizer, "mse", **options)
    done = model.fit(
        [ids, ids[::-1]],
        targets,
        epochs=3,
        batch_size=16,
        shuffle=False,
        verbose=0,
    )
    return done.history["loss"]


def names_model(**options):
    model = keras.Sequential(
        [
            keras.Input((), dtype="string"),
            Embedding(WIDTH, **options),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer="adam", loss="mse")
    return model


# Batches of 96 of 19 ids have them all: optimizers decay rows without gradients.
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: "rmsprop",
        lambda: keras.optimizers.Adagrad(0.1),
        lambda: keras.optimizers.Adam(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
            clipnorm=0.01,
        ),
    ],
)
def test_a_table_of_two_layers_trains_as_one_dense_weight(optimizer):
    dense = DenseTable()
    wanted = losses(two_towers(dense, dense), optimizer())
    users = Embedding(WIDTH, embeddings_initializer=HALF)
    others = Embedding(table=users)

    found = losses(two_towers(users, others), optimizer())

    np.testing.assert_allclose(found, wanted, rtol=2e-4)
    assert users.table is others.table


def test_the_loss_scale_of_float16_is_taken_back():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        dense, users = (
            DenseTable(),
            Embedding(WIDTH, embeddings_initializer=HALF),
        )
        wanted = losses(two_towers(dense, dense), keras.optimizers.Adam(0.05))
        found = losses(two_towers(users, users), keras.optimizers.Adam(0.05))
    finally:
        keras.config.set_dtype_policy("float32")

    np.testing.assert_allclose(found, wanted, rtol=1e-2)


def test_a_gradient_of_float16_that_overflows_moves_nothing():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        users = Embedding(WIDTH, embeddings_initializer=HALF)
        model = two_towers(users, users)
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=2.0**40
        )
        losses(model, optimizer)
    finally:
        keras.config.set_dtype_policy("float32")

    assert users.table.size() == 0
    assert (
        float(optimizer.dynamic_scale) == 2.0**34
    )  # Halved in each of 6 steps.


def test_strings_train_and_predict_without_a_vocabulary():
    model = names_model()

    before = model.evaluate(NAMES, TARGETS, verbose=0)
    assert model.layers[0].table.size() == 0
    model.fit(NAMES, TARGETS, epochs=3, verbose=0)

    assert model.evaluate(NAMES, TARGETS, verbose=0) < before
    assert model.layers[0].table.size() == 4
    model.predict(tf.constant(["dan"]), verbose=0)
    assert model.layers[0].table.size() == 4


def test_numpy_arrays_of_objects_are_strings_for_fit_and_predict():
    model = names_model()
    names = np.array([name.decode() for name in NAMES.numpy()])

    model.fit(names.astype(object), TARGETS, verbose=0)

    assert model.layers[0].table.size() == 4
    assert model.predict(names.astype(object), verbose=0).shape == (24, 1)


def test_a_sequential_model_without_an_input_takes_large_ids():
    model = keras.Sequential([Embedding(WIDTH), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    ids = 10**15 + np.arange(24)

    model.fit(ids, TARGETS, verbose=0)

    keys, _ = model.layers[0].table.export()
    assert sorted(keys.numpy()) == ids.tolist()


def test_a_model_of_the_functional_form_refuses_floats():
    with pytest.raises(errors.UnsupportedError, match="dtype='int64'"):
        Embedding(WIDTH)(keras.Input((3,)))


def test_ids_of_another_kind_than_the_first_are_refused():
    layer = Embedding(WIDTH)
    layer(tf.constant([1, 2]))
    with pytest.raises(errors.DtypeError, match="must be int64"):
        layer(tf.constant(["a"]))


@pytest.mark.parametrize("optimizer", [None, "adagrad", tfembed.Adagrad(0.1)])
def test_training_goes_on_in_a_loaded_model(optimizer, tmp_path):
    model = names_model(optimizer=optimizer)
    model.fit(NAMES, TARGETS, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    for one in (model, loaded):
        one.fit(NAMES, TARGETS, shuffle=False, verbose=0)
    wanted, found = (
        one.layers[0].table.lookup(NAMES) for one in (model, loaded)
    )
    np.testing.assert_array_equal(found, wanted)


def test_layers_that_share_a_table_share_it_in_a_loaded_model(tmp_path):
    users = Embedding(WIDTH, name="users")
    model = two_towers(users, Embedding(table=users, name="others"))
    losses(model, "adam")
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    first, second = (loaded.get_layer(name) for name in ("users", "others"))
    assert first.table is second.table
    np.testing.assert_array_equal(rows_of(first.table), rows_of(users.table))
    assert losses(loaded, loaded.optimizer) == losses(model, model.optimizer)


def test_a_first_input_without_ids_does_not_settle_the_keys():
    layer = Embedding(WIDTH)
    with pytest.raises(
        errors.UnsupportedError, match="Give the layer `key_dtype`"
    ):
        layer([])
    layer(tf.constant(["x"]))
    assert layer([]).shape == (0, WIDTH)


def test_a_layer_of_three_models_inside_of_one_is_loaded(tmp_path):
    words, names = Embedding(WIDTH), ("a", "b", "c")

    def inner(name):
        ids = keras.Input((), dtype="string")
        return keras.Model(ids, words(ids), name=name)

    inputs = [keras.Input((), dtype="string") for _ in names]
    rows = [inner(name)(one) for name, one in zip(names, inputs, strict=True)]
    model = keras.Model(inputs, keras.layers.Concatenate()(rows))
    words.table.upsert(tf.constant(["x", "y", "z"]), np.eye(3, WIDTH))
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    ids = [tf.constant([word]) for word in "xyz"]
    np.testing.assert_array_equal(loaded(ids), model(ids))
    tables = {id(loaded.get_layer(name).layers[1].table) for name in names}
    assert len(tables) == 1


def test_a_clone_of_layers_that_shared_a_table_says_that_it_does_not():
    users = Embedding(WIDTH, name="users")
    model = two_towers(users, Embedding(table=users, name="others"))

    with pytest.warns(UserWarning) as said:
        keras.models.clone_model(model)

    # The clone of `users` has a table as `users` has: nothing is lost there.
    (warning,) = said
    assert "The clone of layer 'others'" in str(warning.message)


@pytest.mark.parametrize(
    ("ids", "padding"), [([[1, 0], [0, 2]], 0), ([["a", ""], ["", "b"]], b"")]
)
def test_padding_has_no_row_and_is_masked(ids, padding):
    layer = Embedding(WIDTH, mask_zero=True)
    ids = tf.constant(ids)
    optimizer = keras.optimizers.SGD(0.1)
    with tf.GradientTape() as tape:
        rows = layer(ids)
        loss = tf.reduce_sum(rows)
    optimizer.apply_gradients(
        zip(
            tape.gradient(loss, layer.trainable_weights),
            layer.trainable_weights,
        )
    )

    kept = ids.numpy() != padding
    np.testing.assert_array_equal(layer.compute_mask(ids), kept)
    np.testing.assert_array_equal(tf.reduce_any(rows != 0, -1), kept)
    assert layer.table.size() == 2
    np.testing.assert_allclose(layer(ids)[0, 0], rows[0, 0] - 0.1)


def test_the_mask_reaches_the_layers_that_follow(tmp_path):
    ids = keras.Input((3,), dtype="string")
    rows = Embedding(WIDTH, mask_zero=True)(ids)
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(rows))

    one, padded = model.predict(
        tf.constant([["a", "a", "a"], ["a", "", ""]]), verbose=0
    )

    np.testing.assert_allclose(padded, one)
    model.save(tmp_path / "model.keras")
    keras.saving.load_model(tmp_path / "model.keras")


def test_an_optimizer_of_the_tables_own_steps_beside_the_models():
    ids = np.arange(1, 9)
    models = []
    for optimizer in ("sgd", de.DynamicEmbeddingOptimizer(tfembed_sgd())):
        layer = Embedding(
            WIDTH, optimizer=keras.optimizers.Adagrad(0.5), key_dtype="int64"
        )
        dense = keras.layers.Dense(1, kernel_initializer=HALF)
        model = keras.Sequential([keras.Input((), dtype="int64"), layer, dense])
        layer.table.upsert(ids, tf.ones([8, WIDTH]))
        model.compile(optimizer, "mse")
        model.fit(ids, np.zeros([8, 1]), batch_size=8, epochs=2, verbose=0)
        models.append(model)

    (one, _), (other, _) = (model.layers for model in models)
    np.testing.assert_allclose(other.table.lookup(ids), one.table.lookup(ids))
    assert int(one.optimizer.iterations) == 2
    # By an accumulator of 0.1, gradients move their row by about the rate.
    assert one.table.lookup(ids)[0, 0] < 0.6


def tfembed_sgd():
    return keras.optimizers.SGD(0.01)


def test_slots_of_another_rule_that_go_are_told_by_name():
    model = names_model()
    model.fit(NAMES, TARGETS, verbose=0)
    table = model.layers[0].table
    before = table.lookup(NAMES)

    model.compile(keras.optimizers.SGD(0.0), "mse")
    with pytest.warns(UserWarning) as said:
        model.fit(NAMES, TARGETS, verbose=0)

    (text,) = (str(w.message) for w in said if "slots" in str(w.message))
    assert f"Table '{table.name}'" in text
    assert "4 rows stay" in text
    assert table.table.slot_names == ()
    np.testing.assert_array_equal(table.lookup(NAMES), before)


def test_slots_of_the_same_rule_stay_with_other_numbers(recwarn):
    keras.utils.set_random_seed(1)
    model = names_model()
    model.fit(NAMES, TARGETS, verbose=0)
    table = model.layers[0].table.table
    before = table.lookup_trained(NAMES)

    model.compile(keras.optimizers.Adam(0.0, beta_1=1.0 - 2**-20), "mse")
    model.fit(NAMES, TARGETS, batch_size=24, verbose=0)

    moments = slice(WIDTH, 2 * WIDTH)
    after = table.lookup_trained(NAMES)
    assert np.abs(before[:, moments]).max() > 0.01
    np.testing.assert_allclose(
        after[:, moments], before[:, moments], 0.01, 1e-3
    )
    assert not [one for one in recwarn if "slots" in str(one.message)]


def test_a_global_norm_names_the_optimizer_that_can_take_it():
    optimizer = keras.optimizers.Adam(0.1, global_clipnorm=1.0)
    users = Embedding(WIDTH)
    with pytest.raises(errors.UnsupportedError, match="Dynamic.*over it"):
        losses(two_towers(users, users), optimizer)


@pytest.mark.parametrize("own", [None, "adagrad"])
def test_gradients_that_keras_would_accumulate_are_refused(own):
    model = keras.Sequential(
        [keras.Input((), dtype="string"), Embedding(WIDTH, optimizer=own)]
    )
    model.compile(keras.optimizers.Adam(gradient_accumulation_steps=2), "mse")

    with pytest.raises(errors.UnsupportedError, match="steps=2.*several batch"):
        model.fit(NAMES, tf.zeros([len(NAMES), WIDTH]), verbose=0)


def test_an_exported_model_serves_strings(tmp_path, caplog):
    model = names_model()
    model.fit(NAMES, TARGETS, verbose=0)
    model.export(tmp_path / "served", verbose=False)

    served = tf.saved_model.load(tmp_path / "served")
    gc.collect()  # What found no value in the file is told by its end.

    assert "could not be found in the checkpoint" not in caplog.text
    np.testing.assert_allclose(
        served.serve(NAMES), model.predict(NAMES, verbose=0), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dim": 0}, "`dim`"),
        ({"optimizer": "adagrd"}, "'adagrad'"),
        ({"embeddings_regularizer": "l2"}, "regularize the rows"),
        ({"table": Embedding(3)}, r"got \['dim'\]"),
    ],
)
def test_arguments_that_mean_nothing_say_what_to_do(options, words):
    with pytest.raises(errors.ArgumentError, match=words):
        Embedding(**{"dim": 2, **options})


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((1000, 16), {}, "one size.*got .1000, 16.*Leave out `input_dim`"),
        ((4,), {"admission": 0}, "`seen` must be"),
        ((4,), {"eviction": "lru"}, "`eviction` must be of EvictionPolicy"),
        ((4,), {"expiry": 3}, "`expiry` must be of Expiry"),
        ((4,), {"max_size": -1}, "max_size.*'films'"),
        ((4,), {"value_dtype": "int32"}, "'films' has rows of int32"),
        ((4,), {"value_dtype": "float17"}, "'float17' is not supported"),
        ((4,), {"key_dtype": str}, "<class 'str'>.*is not supported"),
        ((4,), {"embeddings_initializer": "nope"}, "called 'nope'"),
        ((4,), {"embeddings_initializer": "constant"}, "takes arguments"),
        ((), {"table": 3}, "'films' must be another .*Embedding.*got int"),
    ],
)
def test_what_a_table_cannot_be_is_refused_at_once(arguments, options, text):
    with pytest.raises((errors.ArgumentError, errors.DtypeError), match=text):
        Embedding(*arguments, name="films", **options)


@pytest.mark.parametrize("make", [Embedding, de.keras.layers.Embedding])
@pytest.mark.parametrize(
    "ids", [None, [None], [1, "a"], np.array([1, "a"], object)]
)
def test_what_is_no_id_is_named(make, ids):
    with pytest.raises(errors.DtypeError, match="Ids of layer 'films' must be"):
        make(4, name="films")(ids)


def test_arrays_of_objects_are_ids():
    layer = Embedding(4)
    assert layer(np.array([1, 2], object)).shape == (2, 4)


class Recommender(keras.Model):
    """The model of Keras' example of collaborative filtering."""

    def __init__(self, table):
        super().__init__()
        self.users, self.user_bias = table(60, 16), table(60, 1)
        self.films, self.film_bias = table(40, 16), table(40, 1)

    def call(self, pairs):
        user, film = pairs[:, 0], pairs[:, 1]
        product = self.users(user) * self.films(film)
        score = keras.ops.sum(product, 1, keepdims=True)
        return keras.ops.sigmoid(
            score + self.user_bias(user) + self.film_bias(film)
        )


def _losses_of_filtering(table):
    rng = np.random.default_rng(5)
    pairs = np.stack([rng.integers(0, n, 2000) for n in (60, 40)], 1)
    tastes = rng.normal(size=(60, 2))[pairs[:, 0]]
    scores = (tastes * rng.normal(size=(40, 2))[pairs[:, 1]]).sum(1)
    likes = 1 / (1 + np.exp(-scores))
    keras.utils.set_random_seed(11)
    model = Recommender(table)
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    new = (pairs[1600:], likes[1600:])
    done = model.fit(
        pairs[:1600], likes[:1600], validation_data=new, epochs=4, verbose=0
    )
    return done.history["val_loss"]


@pytest.mark.slow
def test_collaborative_filtering_is_ported_with_its_initializer():
    ours = _losses_of_filtering(
        lambda rows, width: Embedding(
            width, embeddings_initializer="he_normal", fan_in=rows
        )
    )
    stock = _losses_of_filtering(
        lambda rows, width: keras.layers.Embedding(
            rows, width, embeddings_initializer="he_normal"
        )
    )

    np.testing.assert_allclose(ours, stock, rtol=0.1)
    assert ours[-1] < 0.95 * ours[0]
