"""TPUEmbeddingV0 by the host's own op: as by TensorFlow's ops, gradients too."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import v0_batches
from tfembed.embedding.lookups import direct_lookup

SORTED = [[0, 0], [0, 2], [0, 3], [2, 0], [2, 1]]
SHUFFLED = [SORTED[i] for i in (3, 1, 4, 0, 2)]
TWICE = [[0, 2], [2, 0], [0, 2], [0, 0], [2, 0]]
IDS = [1, 3, 8, 3, 3]


def _sparse(places, dtype=tf.int64, shape=(3, 4), ids=IDS):
    places = np.reshape(np.array(places, np.int64), [-1, len(shape)])
    return tf.SparseTensor(places, tf.constant(ids, dtype), shape)


def _cubes(places):
    """Rank 3: sample (s, 0) is sample s of `places`."""
    return _sparse([[s, 0, column] for s, column in places], shape=(3, 2, 4))


def _ragged(dtype=tf.int64, splits=tf.int64, rows=([1, 3, 8], [], [3, 3])):
    return tf.ragged.constant(rows, dtype, row_splits_dtype=splits)


INPUTS = {
    "dense": tf.constant(IDS),
    "dense, small": tf.constant(IDS, tf.uint8),
    "dense, rank 0": tf.constant(3),
    "dense, rank 2": tf.constant([[1, 3], [8, 3]], tf.int64),
    "dense, rank 3": tf.constant([[[1], [3]]]),
    "dense, none": tf.zeros([0, 2], tf.int64),
    "sparse": _sparse(SORTED),
    "sparse, int32": _sparse(SORTED, tf.int32),
    "sparse, any order": _sparse(SHUFFLED),
    "sparse, a place twice": _sparse(TWICE),
    "sparse, no ids": _sparse([], ids=[]),
    "sparse, no samples": _sparse([], ids=[], shape=(0, 4)),
    "sparse, rank 1": _sparse([[2], [0], [3]], shape=(4,), ids=[1, 8, 3]),
    "sparse, rank 3": _cubes(SORTED),
    "sparse, rank 3, any order": _cubes(SHUFFLED),
    "ragged": _ragged(),
    "ragged, int32": _ragged(tf.int32, tf.int32),
    "ragged, no ids": _ragged(rows=[[], [], []]),
    "ragged, no samples": tf.RaggedTensor.from_row_splits(
        tf.zeros([0], tf.int64), [0]
    ),
}
SEQUENCES = [
    name for name in INPUTS if "dense" not in name and "rank" not in name
]
WEIGHTED = [name for name in INPUTS if "dense" not in name]


def _by_tensorflow(embedding, values, weights=None):
    """The result of V0 where the op cannot be used."""
    paths = [(f"feature {i}", f) for i, f in enumerate(embedding.features)]
    return direct_lookup.look_up(
        paths,
        values,
        weights or [None] * len(values),
        embedding.embedding_tables,
        direct_lookup.V0,
    )


class _Embedding(tfembed.TPUEmbeddingV0):
    """Features of one table, with another in front that shares it."""

    def __init__(self, combiner="mean", **feature):
        table = tfembed.TableConfig(
            9,
            3,
            tf.constant_initializer(v0_batches.ROWS),
            combiner=combiner,
            name="users",
        )
        self.features = [
            tfembed.FeatureConfig(table),
            tfembed.FeatureConfig(table, **feature),
        ]
        super().__init__(self.features, None)
        self.build()


def _differentiated(look_up, table, values, weights):
    """Activations, and gradients with respect to the table and the weights."""
    with tf.GradientTape() as tape:
        numbers = []
        if weights is not None:
            numbers = [weights.values]
            tape.watch(numbers)
            weights = [None, weights.with_values(*numbers)]
        activations = look_up(values, weights)
        loss = tf.add_n([tf.reduce_sum(tf.sin(one)) for one in activations])
    of_table, *of_weights = tape.gradient(loss, [table, *numbers])
    # A sequence has none for its weights.
    of_weights = [one for one in of_weights if one is not None]
    assert isinstance(of_table, tf.IndexedSlices)
    return activations, of_table, of_weights


MODES = pytest.mark.parametrize("mode", ["eager", "function", "unknown shapes"])


def _check(embedding, value, weights, mode):
    (table,) = embedding.trainable_variables
    values = [tf.constant([3, 0]), value]

    def ours(values, weights=None):
        return _differentiated(embedding, table, values, weights)

    batch = (values,) if weights is None else (values, weights)
    if mode == "unknown shapes":
        ours = tf.function(ours, input_signature=_specs(batch))
    ours = functools.partial(ours, *batch)
    if mode == "function":
        ours = tf.function(ours)
    expected = _differentiated(
        lambda *batch: _by_tensorflow(embedding, *batch), table, values, weights
    )
    found = ours()
    for one, other in zip(found[0], expected[0], strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    ids = found[1].indices.numpy().tolist()
    assert ids == sorted(set(expected[1].indices.numpy().tolist()))
    for one, other in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(
            tf.convert_to_tensor(one), tf.convert_to_tensor(other), 1e-5, 1e-6
        )


def _specs(batch):
    def unknown(value):
        if isinstance(value, tf.SparseTensor):
            shape = [None] * value.shape.rank
            return tf.SparseTensorSpec(shape, value.dtype)
        if isinstance(value, tf.RaggedTensor):
            return tf.RaggedTensorSpec(
                [None, None],
                value.dtype,
                row_splits_dtype=value.row_splits.dtype,
            )
        return tf.TensorSpec([None] * value.shape.rank, value.dtype)

    return tf.nest.map_structure(unknown, batch)


@MODES
@pytest.mark.parametrize("value", INPUTS)
def test_input_of_each_kind_is_looked_up_as_by_tensorflow(value, mode):
    _check(_Embedding(), INPUTS[value], None, mode)


@MODES
@pytest.mark.parametrize("value", SEQUENCES)
@pytest.mark.parametrize("length", [1, 3, 6])
def test_sequences_are_looked_up_as_by_tensorflow(value, length, mode):
    _check(_Embedding(max_sequence_length=length), INPUTS[value], None, mode)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("value", ["sparse", "sparse, any order", "ragged"])
@pytest.mark.parametrize("shape", [[3], [3, 1], [3, 2], [2, 3]])
def test_output_shapes_are_kept_as_by_tensorflow(value, shape, mode):
    value = INPUTS[value]
    weights = value.with_values(tf.constant([1.0, 0.5, -2.0, 0.25, 0.0]))
    _check(_Embedding(output_shape=shape), value, weights, mode)


@MODES
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("value", WEIGHTED)
def test_weights_count_and_have_gradients_as_by_tensorflow(
    value, combiner, mode
):
    value = INPUTS[value]
    numbers = tf.constant([1.0, 0.5, -2.0, 0.25, 0.5])
    weights = value.with_values(numbers[: value.values.shape[0]])
    _check(_Embedding(combiner), value, weights, mode)


def test_a_tape_around_a_function_finds_gradients_of_weights():
    embedding, value = _Embedding("mean"), INPUTS["ragged"]
    weights = value.with_values(tf.constant([1.0, 0.5, 2.0, 0.25, 0.5]))
    found = []
    for look_up in (embedding, functools.partial(_by_tensorflow, embedding)):
        with tf.GradientTape() as tape:
            tape.watch(weights.values)
            batch = [tf.constant([3]), value], [None, weights]
            loss = tf.reduce_sum(tf.sin(tf.function(look_up)(*batch)[1]))
        found.append(tape.gradient(loss, weights.values))
    np.testing.assert_allclose(*found, 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.int32, tf.bool])
def test_weights_may_be_of_any_type_of_numbers(dtype):
    embedding, value = _Embedding("sum"), INPUTS["ragged"]
    weights = value.with_values(tf.cast([1, 0, 1, 1, 0], dtype))
    batch = [tf.constant([3]), value], [None, weights]
    np.testing.assert_allclose(
        embedding(*batch)[1], _by_tensorflow(embedding, *batch)[1], 1e-6
    )


def test_weights_of_no_ids_are_not_taken_for_ones():
    value = INPUTS["ragged"]
    weights = tf.RaggedTensor.from_row_splits(
        tf.zeros([0]), value.row_splits, validate=False
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        _Embedding()([tf.constant([3]), value], [None, weights])


@pytest.mark.parametrize(
    "make", [keras.optimizers.Adagrad, keras.optimizers.Adam]
)
def test_steps_train_as_by_tensorflows_ops(make):
    trained = []
    for look_up in (lambda e, b: e(b), _by_tensorflow):
        embedding, optimizer = _Embedding(max_sequence_length=3), make(0.5)
        (table,) = embedding.trainable_variables
        optimizer.build([table])

        @tf.function(reduce_retracing=True)
        def step(
            ids,
            embedding=embedding,
            optimizer=optimizer,
            table=table,
            look_up=look_up,
        ):
            with tf.GradientTape() as tape:
                found = look_up(embedding, [ids.values, ids])
                loss = tf.add_n([tf.reduce_sum(x**2) for x in found])
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])

        for rows in ([[1, 3], [3]], [[8]], [[0, 0, 0, 0], [], [1]]):
            step(_ragged(rows=rows))
        trained.append(table.numpy())
    np.testing.assert_allclose(*trained, 1e-5, 1e-6)
