"""Runs a program of a TPUEstimator, and notes its losses."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from tfembed.estimator import tpu

v1 = tf.compat.v1


# Graphs of many replicas that run twenty times take longer to optimize than to run.
# The same graphs of two replicas are optimized as users' are.
AS_WRITTEN = v1.ConfigProto(
    allow_soft_placement=True,
    graph_options=v1.GraphOptions(
        rewrite_options=rewriter_config_pb2.RewriterConfig(
            disable_meta_optimizer=True
        )
    ),
)


class Losses(v1.train.SessionRunHook):
    """Notes the loss of each run of the session."""

    def __init__(self):
        self.losses = []

    def begin(self):
        self._loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context, run_values):
        self.losses.append(float(run_values.results))


def make(
    program,
    folder,
    replicas,
    *,
    iterations=1,
    tpu_config=None,
    run_config=None,
    params=None,
    **options,
):
    """Makes a program's estimator; 0 replicas: use_tpu=False."""
    config = tpu.RunConfig(
        model_dir=str(folder),
        tf_random_seed=5,
        session_config=AS_WRITTEN if replicas in (1, 8) else None,
        tpu_config=tpu.TPUConfig(
            iterations_per_loop=iterations,
            num_shards=replicas or None,
            **(tpu_config or {}),
        ),
        **(run_config or {}),
    )
    return tpu.TPUEstimator(
        program.model_fn,
        config=config,
        params=params or {},
        use_tpu=replicas > 0,
        train_batch_size=program.BATCH,
        eval_batch_size=program.BATCH,
        predict_batch_size=program.BATCH,
        **options,
    )


def losses_of(model, program, steps=20):
    """Trains and returns the loss of each step."""
    hook = Losses()
    model.train(program.train_fn, steps=steps, hooks=[hook])
    return hook.losses


def losses(program, folder, replicas, **options):
    """The losses of 20 steps of a new estimator."""
    return losses_of(make(program, folder, replicas, **options), program)


def scalars(folder):
    """The scalars that were written to a folder: steps and values by tag."""
    found = {}
    for path in sorted(folder.glob("events*")):
        for event in v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append((event.step, number))
    return found
