"""Engine="xla" on one device: the host engine's results, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding.marks import NEEDS_XLA
from tfembed import errors

pytestmark = NEEDS_XLA


def _rows(seed, shape):
    rows = np.random.default_rng(seed).standard_normal(shape)
    return tf.constant_initializer(rows.astype(np.float32))


def _embedding(engine, optimizer=None, **options):
    users = tfembed.TableConfig(
        20, 4, name="users", combiner="mean", initializer=_rows(0, (20, 4))
    )
    items = tfembed.TableConfig(
        30, 4, name="items", combiner="sqrtn", initializer=_rows(1, (30, 4))
    )
    features = {
        "user": tfembed.FeatureConfig(users, name="user"),
        "friends": tfembed.FeatureConfig(users, name="friends"),
        "liked": tfembed.FeatureConfig(items, name="liked"),
        "last": tfembed.FeatureConfig(
            items, name="last", max_sequence_length=3
        ),
    }
    optimizer = tfembed.Adagrad(0.1) if optimizer is None else optimizer
    return tfembed.TPUEmbedding(features, optimizer, engine=engine, **options)


def _parts(padding=0):
    """Tensors of which `_features` makes a batch of three samples."""
    pad = [7] * padding
    return {
        "user": tf.constant([1, 2, 1]),
        "friends": tf.constant([1, 2, 3, 4, *pad], tf.int64),
        "friend_splits": tf.constant([0, 3, 3, 4], tf.int64),
        "liked": tf.constant([1, 2, -1, 3, *([-1] * padding)], tf.int64),
        "liked_at": tf.constant(
            [[0, 0], [0, 1], [1, 0], [2, 0], *([[2, 1]] * padding)], tf.int64
        ),
        "last": tf.constant([7, 8, 9, 10, 1, *pad], tf.int64),
        "last_splits": tf.constant([0, 4, 5, 5], tf.int64),
    }


def _features(parts):
    def ragged(name, splits):
        return tf.RaggedTensor.from_row_splits(
            parts[name], parts[splits], validate=False
        )

    liked = tf.SparseTensor(
        parts["liked_at"], parts["liked"], tf.constant([3, 2], tf.int64)
    )
    return {
        "user": parts["user"],
        "friends": ragged("friends", "friend_splits"),
        "liked": liked,
        "last": ragged("last", "last_splits"),
    }


def _step(embedding, parts, name=None):
    embedding.enqueue(_features(parts), name=name)
    activations = embedding.dequeue(name)
    embedding.apply_gradients(
        {key: tf.sin(x) + 0.5 for key, x in activations.items()}, name
    )
    return activations


def _assert_same(actual, expected):
    tf.nest.map_structure(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6),
        actual,
        expected,
    )


def _assert_same_tables(one, other):
    for a, b in zip(
        one.embedding_tables.values(),
        other.embedding_tables.values(),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["eager", "function", "compiled"])
def test_steps_are_those_of_the_host_engine(how):
    host, xla = _embedding("host"), _embedding("xla")
    step = _step
    if how != "eager":
        step = tf.function(_step, jit_compile=how == "compiled" or None)
    padding = 3 if how == "compiled" else 0

    for _ in range(3):
        expected = _step(host, _parts())
        _assert_same(step(xla, _parts(padding)), expected)

    _assert_same_tables(xla, host)


@pytest.mark.parametrize(
    "optimizer",
    [
        tfembed.Adam(0.1, lazy_adam=False),
        tfembed.optimizers.RowWiseAdagrad(lambda: 0.1),
        tfembed.SGD(0.1, use_gradient_accumulation=False),
    ],
    ids=["all rows", "row-wise", "no accumulation"],
)
def test_rules_are_those_of_the_host_engine(optimizer):
    host, xla = _embedding("host", optimizer), _embedding("xla", optimizer)

    for _ in range(2):
        _assert_same(_step(xla, _parts()), _step(host, _parts()))

    _assert_same_tables(xla, host)


def test_functions_can_be_run_eagerly():
    host, xla = _embedding("host"), _embedding("xla")
    tf.config.run_functions_eagerly(True)
    try:
        for _ in range(2):
            _assert_same(_step(xla, _parts()), _step(host, _parts()))
    finally:
        tf.config.run_functions_eagerly(False)

    _assert_same_tables(xla, host)


def test_sparse_ids_of_rank_3_compile():
    table = tfembed.TableConfig(
        9, 4, name="items", combiner="sum", initializer=_rows(0, (9, 4))
    )
    host, xla = (
        tfembed.TPUEmbedding(
            tfembed.FeatureConfig(table), tfembed.SGD(0.1), engine=engine
        )
        for engine in ("host", "xla")
    )

    def step(embedding, ids):
        at = tf.constant([[0, 0, 1], [0, 1, 0], [1, 2, 0], [1, 2, 1]], tf.int64)
        embedding.enqueue(tf.SparseTensor(at, ids, [2, 3, 2]))
        activations = embedding.dequeue()
        embedding.apply_gradients(tf.sin(activations))
        return activations

    ids = tf.constant([1, 2, 1, 4])
    compiled = tf.function(step, jit_compile=True)
    for _ in range(2):
        _assert_same(compiled(xla, ids), step(host, ids))


def test_larger_batches_than_before_lose_nothing():
    host, xla = _embedding("host"), _embedding("xla")
    step = tf.function(_step)
    parts = _parts()
    for n in (1, 40, 3):
        parts["friends"] = tf.cast(tf.range(n) % 20, tf.int64)
        parts["friend_splits"] = tf.constant([0, 0, n, n], tf.int64)
        _assert_same(step(xla, parts), step(host, parts))

    _assert_same_tables(xla, host)


@pytest.mark.parametrize("engines", [("host", "xla"), ("xla", "host")])
def test_checkpoints_go_from_one_engine_to_the_other(tmp_path, engines):
    saved, restored = map(_embedding, engines)
    _step(saved, _parts())
    path = tf.train.Checkpoint(e=saved).save(str(tmp_path / "c"))
    restored.build(per_replica_batch_size=3)

    tf.train.Checkpoint(e=restored).restore(path)

    _assert_same_tables(restored, saved)
    _assert_same(_step(restored, _parts()), _step(saved, _parts()))
    _assert_same_tables(restored, saved)


def test_sizes_count_bytes_and_skipped_rows():
    embedding = _embedding("xla")
    embedding.enqueue(_features(_parts()))
    activations = embedding.dequeue()
    gradients = {k: tf.ones_like(x) for k, x in activations.items()}
    gradients["user"] = tf.fill([3, 4], np.nan)
    embedding.apply_gradients(gradients)

    sizes = embedding.sizes()

    assert sizes["users"] == tfembed.TableSize(20, 20 * 4 * 4 * 2, 2)
    assert sizes["items"].nonfinite_rows == 0


def test_ids_of_unknown_number_in_a_compiled_function_name_the_feature():
    embedding = _embedding("xla")

    @tf.function(jit_compile=True)
    def step(features):
        embedding.enqueue(features)
        return embedding.dequeue()

    with pytest.raises(
        errors.ArgumentError, match=r"input (friends|last|liked)"
    ):
        step(_features(_parts()))


def test_a_compiled_function_dequeues_what_it_enqueued():
    embedding = _embedding("xla")
    embedding.enqueue(_features(_parts()))

    with pytest.raises(errors.StateError, match="in the same function"):
        tf.function(embedding.dequeue, jit_compile=True)()


def test_a_compiled_function_trains_only_what_is_for_training():
    embedding = _embedding("xla")

    @tf.function(jit_compile=True)
    def step(parts):
        embedding.enqueue(_features(parts), training=False)
        activations = embedding.dequeue()
        embedding.apply_gradients(activations)

    with pytest.raises(errors.StateError, match="training=False"):
        step(_parts())


@pytest.mark.parametrize("part", ["user", "friends", "liked", "last"])
@pytest.mark.parametrize("is_function", [False, True])
def test_an_id_outside_of_the_vocabulary_is_refused_by_name(part, is_function):
    embedding = _embedding("xla")
    step = tf.function(_step) if is_function else _step
    parts = _parts()
    parts[part] = tf.fill(parts[part].shape, tf.cast(31, parts[part].dtype))

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{part}.*31"):
        step(embedding, parts)


def test_what_it_cannot_do_is_said_when_it_is_made():
    table = tfembed.TableConfig(None, 4, name="growing")
    with pytest.raises(errors.ArgumentError, match="growing.*vocabulary_size"):
        tfembed.TPUEmbedding(tfembed.FeatureConfig(table), engine="xla")

    with pytest.raises(errors.UnsupportedError, match="nonfinite='refuse'"):
        _embedding("xla", nonfinite="refuse")

    with (
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope(),
        pytest.raises(errors.UnsupportedError, match="2 replicas"),
    ):
        _embedding("xla")

    combiner = tfembed.CustomCombiner(lambda valency, vectors: vectors[0], 2)
    table = tfembed.TableConfig(8, 4, combiner=combiner, name="own")
    with pytest.raises(errors.UnsupportedError, match="own.*CustomCombiner"):
        tfembed.TPUEmbedding(tfembed.FeatureConfig(table), engine="xla")

    huge = tfembed.TableConfig(2_000_000_000, 4096, name="huge")
    with pytest.raises(errors.ArgumentError, match=r"32,768.* the machine has"):
        tfembed.TPUEmbedding(
            tfembed.FeatureConfig(huge), tfembed.SGD(0.1), engine="xla"
        )
