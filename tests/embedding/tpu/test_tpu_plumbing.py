"""strict_tpu=True refuses what a TPU refuses, and nothing else."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from embedding import marks
from tfembed import errors


def _zeros(shape, dtype):
    return tf.zeros(shape, dtype)


STRATEGIES = {
    "default": tf.distribute.get_strategy,
    "one device": lambda: tf.distribute.OneDeviceStrategy("/CPU:0"),
    "mirrored": lambda: tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"]),
}


@pytest.fixture(
    params=[
        "default",
        "one device",
        pytest.param("mirrored", marks=marks.REPLICAS),
    ]
)
def strategy(request):
    return STRATEGIES[request.param]()


def _embedding(strategy, *, strict_tpu=True):
    table = tfembed.TableConfig(4, 2, _zeros, combiner="sum", name="users")
    with strategy.scope():
        return tfembed.TPUEmbedding(
            {"clicks": tfembed.FeatureConfig(table)},
            tfembed.SGD(1.0),
            strict_tpu=strict_tpu,
        )


def _train(embedding, ids):
    embedding.enqueue({"clicks": ids})
    embedding.apply_gradients(
        tf.nest.map_structure(tf.ones_like, embedding.dequeue())
    )


def _counts(embedding):
    (table,) = embedding.embedding_tables.values()
    return (-table.numpy()[:, 0]).tolist()


RAGGED = tf.ragged.constant([[1], [2, 2]], dtype=tf.int64)
INPUTS = {
    "dense": tf.constant([1, 2, 2]),
    "ragged": RAGGED,
    "sparse": RAGGED.to_sparse(),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_arguments_of_the_replicas_function_pass(strategy, kind):
    embedding = _embedding(strategy)

    @tf.function
    def step(ids):
        strategy.run(lambda ids: _train(embedding, ids), args=(ids,))

    step(INPUTS[kind])
    n = strategy.num_replicas_in_sync
    assert _counts(embedding) == [0, n, 2 * n, 0]


def test_what_is_computed_before_run_passes(strategy):
    embedding = _embedding(strategy)

    @tf.function
    def step(ids):
        ids = tf.cast(ids, tf.int64) + 1
        strategy.run(lambda ids: _train(embedding, ids), args=(ids,))

    step(tf.constant([2]))
    assert _counts(embedding)[3] == strategy.num_replicas_in_sync


@pytest.mark.parametrize("kind", INPUTS)
def test_what_is_computed_inside_of_run_is_refused(strategy, kind):
    embedding = _embedding(strategy)

    def replica_step(ids):
        ids = (
            tf.ragged.map_flat_values(tf.abs, ids)
            if kind == "ragged"
            else (
                tf.sparse.map_values(tf.abs, ids)
                if kind == "sparse"
                else tf.abs(ids)
            )
        )
        _train(embedding, ids)

    @tf.function
    def step(ids):
        strategy.run(replica_step, args=(ids,))

    words = r"clicks .*\(type Abs\) which does not have the `_tpu_input_iden"
    with pytest.raises(errors.ArgumentError, match=f"{words}.*strategy.run"):
        step(INPUTS[kind])
    assert _counts(embedding) == [0] * 4


def test_without_it_ids_may_be_computed_inside_of_run(strategy):
    embedding = _embedding(strategy, strict_tpu=False)

    @tf.function
    def step(ids):
        strategy.run(lambda ids: _train(embedding, tf.abs(ids)), args=(ids,))

    step(tf.constant([3]))
    assert _counts(embedding)[3] == strategy.num_replicas_in_sync


def test_control_flow_inside_of_run_is_refused(strategy):
    embedding = _embedding(strategy)

    def replica_step(ids):
        def enqueue():
            embedding.enqueue({"clicks": ids})
            return 0

        tf.cond(tf.size(ids) > 0, enqueue, lambda: 0)

    @tf.function
    def step(ids):
        strategy.run(replica_step, args=(ids,))

    # TensorFlow's words, and what they mean.
    words = "not match graph which contains TPUReplicateContext.*control flow"
    with pytest.raises(RuntimeError, match=words):
        step(tf.constant([3]))


def test_control_flow_around_run_passes(strategy):
    embedding = _embedding(strategy)

    @tf.function
    def step(ids):
        for _ in tf.range(3):
            strategy.run(lambda ids: _train(embedding, ids), args=(ids,))

    step(tf.constant([3]))
    assert _counts(embedding)[3] == 3 * strategy.num_replicas_in_sync


def test_a_function_inside_of_run_is_refused(strategy):
    embedding = _embedding(strategy)
    enqueue = tf.function(lambda ids: embedding.enqueue({"clicks": ids}))

    @tf.function
    def step(ids):
        strategy.run(lambda ids: enqueue(ids), args=(ids,))

    with pytest.raises(RuntimeError, match="tf.function inside of strategy"):
        step(tf.constant([3]))


def test_enqueue_outside_of_run_may_be_anywhere(strategy):
    embedding = _embedding(strategy)

    @tf.function
    def step(ids):
        if tf.size(ids) > 0:
            embedding.enqueue({"clicks": tf.abs(ids)})

    step(tf.constant([3]))
    embedding.enqueue({"clicks": tf.constant([3])})


@pytest.mark.parametrize("device", ["/device:GPU:0", "/device:TPU:1"])
@pytest.mark.parametrize("inside", [False, True])
def test_ids_on_a_device_are_refused_and_it_is_said_how_to_avoid_them(
    strategy, device, inside
):
    embedding = _embedding(strategy)

    def enqueue(ids):
        embedding.enqueue({"clicks": ids})

    @tf.function
    def step(ids):
        with tf.device(device):
            ids = tf.abs(ids)
        if inside:
            strategy.run(enqueue, args=(ids,))
        else:
            enqueue(ids)

    with pytest.raises(
        ValueError,
        match=f"clicks .*{device[8:11]} input device.*fetch_to_device",
    ):
        step.get_concrete_function(tf.TensorSpec([1], tf.int64))


@marks.REPLICAS
def test_distributed_values_on_a_device_are_refused():
    strategy = STRATEGIES["mirrored"]()
    embedding = _embedding(strategy)

    @tf.function
    def step(batches):
        def moved(ids):
            with tf.device("/device:GPU:0"):
                return tf.abs(ids)

        embedding.enqueue({"clicks": strategy.run(moved, args=(batches,))})

    batches = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([context.replica_id_in_sync_group])
    )
    with pytest.raises(ValueError, match="GPU input device"):
        step.get_concrete_function(batches)
    embedding.enqueue({"clicks": batches})


def test_packed_batches_are_checked_too():
    strategy = STRATEGIES["default"]()
    embedding = _embedding(strategy)

    @tf.function
    def step(ids):
        def replica_step(ids):
            _train(embedding, tfembed.pack_features({"clicks": ids}))

        strategy.run(replica_step, args=(ids,))

    with pytest.raises(errors.ArgumentError, match="strategy.run"):
        step(tf.constant([1]))
