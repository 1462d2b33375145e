"""A recommender by feature columns, from parsed examples.

Its shape is that of the TPU's embedding program: one table that a sequence of
ids and a single id share (combiner None, VarLenFeature), another table, and a
host_call that writes every few steps.

It needs tf_keras, whose layers read sequences and shared columns.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.estimator.programs.images import weights
from tfembed.estimator import ModeKeys, tpu
from tfembed.estimator.tpu import experimental

v1 = tf.compat.v1
columns_of_tpu = v1.tpu.experimental

BATCH, ITEMS, USERS, WIDTH, MOST, EVERY = 16, 12, 9, 3, 4, 5
_random = np.random.default_rng(6)
LENGTHS = _random.integers(1, MOST + 1, 64)
WATCHED = [_random.integers(0, ITEMS, n).tolist() for n in LENGTHS]
QUERY = _random.integers(0, ITEMS, 64)
USER = _random.integers(0, USERS, 64)
LABELS = ((QUERY + USER) % 3).astype(np.float32)

# Where the host_call of the next graph writes.
FOLDERS: list[str] = []


def rows(shape, dtype=tf.float32, partition_info=None):
    """Rows that differ, the same in every graph."""
    values = np.arange(np.prod(shape)).reshape(shape) % 7 / 10 - 0.3
    return tf.constant(values, dtype)


def columns():
    """The column of the sequence, then the others."""
    identity = tf.feature_column.categorical_column_with_identity
    sequence = tf.feature_column.sequence_categorical_column_with_identity
    watched, query = columns_of_tpu.shared_embedding_columns(
        [sequence("watched", ITEMS), identity("query", ITEMS)],
        WIDTH,
        combiner=None,
        initializer=rows,
        max_sequence_lengths=[MOST, 0],
    )
    user = columns_of_tpu.embedding_column(
        identity("user", USERS), WIDTH, combiner="sum", initializer=rows
    )
    return watched, [query, user]


def spec():
    watched, others = columns()
    return experimental.EmbeddingConfigSpec(
        [watched, *others], experimental.AdagradParameters(0.1)
    )


def _example(row):
    def ids(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    label = tf.train.Feature(float_list=tf.train.FloatList(value=[LABELS[row]]))
    features = {
        "watched": ids(WATCHED[row]),
        "query": ids([QUERY[row]]),
        "user": ids([USER[row]]),
        "label": label,
    }
    return tf.train.Example(
        features=tf.train.Features(feature=features)
    ).SerializeToString()


def train_fn(params):
    data = tf.data.Dataset.from_tensor_slices(
        [_example(row) for row in range(64)]
    )
    data = data.repeat().batch(params["batch_size"], drop_remainder=True)

    def parsed(examples):
        found = tf.io.parse_example(
            examples,
            {
                "watched": tf.io.VarLenFeature(tf.int64),
                "query": tf.io.VarLenFeature(tf.int64),
                "user": tf.io.VarLenFeature(tf.int64),
                "label": tf.io.FixedLenFeature([], tf.float32),
            },
        )
        return found, found.pop("label")

    return data.map(parsed)


def host_call(step, loss):
    """Writes the loss of each fifth step."""
    with (
        tf.summary.create_file_writer(FOLDERS[-1]).as_default(),
        tf.summary.record_if(lambda: tf.equal(step[0] % EVERY, 0)),
    ):
        tf.summary.scalar("loss", tf.reduce_mean(loss), step=step[0])
    return v1.summary.all_v2_summary_ops()


def model_fn(features, labels, mode, params):
    import tf_keras

    watched, others = columns()
    sequence, lengths = tf_keras.experimental.SequenceFeatures([watched])(
        features
    )
    places = tf.sequence_mask(lengths, tf.shape(sequence)[1], tf.float32)
    bag = tf.reduce_sum(sequence * places[:, :, tf.newaxis], 1)
    layer = tf_keras.layers.DenseFeatures(others)(features)
    both = tf.concat([bag, layer], 1)
    hidden = tf.nn.relu(tf.matmul(both, weights("hidden", [3 * WIDTH, 8])))
    scores = tf.squeeze(tf.matmul(hidden, weights("scores", [8, 1])), 1)
    loss, train_op, call = tf.reduce_mean((scores - labels) ** 2), None, None
    if mode == ModeKeys.TRAIN:
        step = v1.train.get_global_step()
        optimizer = v1.train.AdagradOptimizer(0.1)
        if params["use_tpu"]:
            optimizer = v1.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, step)
        call = (host_call, [tf.reshape(value, [1]) for value in (step, loss)])
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, host_call=call
    )
