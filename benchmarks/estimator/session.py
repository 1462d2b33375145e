"""One estimator in a process of its own; it times its own steps."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

BATCH = 1024
NUM_COLUMNS = 26
DIM = 16
# Rows of the tables: from small ones to a million, as in click logs.
VOCABULARIES = [
    int(10 ** (2 + 4 * i / (NUM_COLUMNS - 1))) for i in range(NUM_COLUMNS)
]
_LOOP = 25


class Session:
    """Trains a model of 26 embedding columns, a dense part and Adagrad.

    Args:
      contender: "tfembed", by an EmbeddingConfigSpec on one simulated replica;
        "tfembed, columns", the plain columns; "TensorFlow 2.15"; or that with
        ", tuned" behind it: without the rewrite of graphs that reads a whole
        table to look up some of its rows.
      threads: of TensorFlow's pools.
    """

    def __init__(self, contender: str, threads: int) -> None:
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        self._threads = threads
        self._has_tables = contender == "tfembed"
        self._is_tuned = contender.endswith("tuned")
        if contender.startswith("TensorFlow 2.15"):
            self._estimators: Any = v1.estimator
        else:
            from tfembed import estimator

            self._estimators = estimator

    def run(self, steps: int) -> float:
        """Seconds of a step: a new model, its first steps left out."""
        columns = [_column(i) for i in range(NUM_COLUMNS)]
        tpu = self._estimators.tpu
        spec = None
        if self._has_tables:
            experimental = tpu.experimental
            spec = experimental.EmbeddingConfigSpec(
                feature_columns=columns,
                optimization_parameters=experimental.AdagradParameters(0.05),
            )
        hook = _Clock()
        with tempfile.TemporaryDirectory() as folder:
            estimator = tpu.TPUEstimator(
                _model_fn,
                config=tpu.RunConfig(
                    model_dir=folder,
                    save_checkpoints_secs=None,
                    save_checkpoints_steps=None,
                    save_summary_steps=None,
                    log_step_count_steps=None,
                    session_config=self._session_config(),
                    tpu_config=tpu.TPUConfig(
                        iterations_per_loop=_LOOP,
                        num_shards=1,
                        per_host_input_for_training=(
                            tpu.InputPipelineConfig.PER_HOST_V2
                        ),
                    ),
                ),
                params={"columns": columns},
                use_tpu=self._has_tables,
                train_batch_size=BATCH,
                embedding_config_spec=spec,
            )
            estimator.train(_input_fn, hooks=[hook], max_steps=steps)
        return hook.seconds_per_step()

    def _session_config(self) -> Any:
        config = v1.ConfigProto(
            inter_op_parallelism_threads=self._threads,
            intra_op_parallelism_threads=self._threads,
        )
        if self._is_tuned:
            rewrites = config.graph_options.rewrite_options
            rewrites.arithmetic_optimization = rewrites.OFF
        return config


class _Clock(v1.train.SessionRunHook):
    """Notes when runs end, and how many steps there were then."""

    def __init__(self) -> None:
        self._noted: list[tuple[int, float]] = []

    def before_run(self, run_context: Any) -> Any:
        """Asks for nothing: the step is read behind the run."""
        del run_context

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Notes the time at every loop's end."""
        del run_values
        step = run_context.session.run(v1.train.get_global_step())
        if step % _LOOP == 0:
            self._noted.append((int(step), time.perf_counter()))

    def seconds_per_step(self) -> float:
        """The median over loops, but for the first one."""
        loops = zip(self._noted, self._noted[1:])
        return float(
            np.median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in loops])
        )


def _column(i: int) -> Any:
    categorical = tf.feature_column.categorical_column_with_identity(
        f"c{i:02}", VOCABULARIES[i]
    )
    return v1.tpu.experimental.embedding_column(categorical, DIM)


def _input_fn(params: dict[str, Any]) -> Any:
    rng = np.random.default_rng(0)
    batches = 16
    shape = [batches * params["batch_size"], 1]
    features = {
        # As in click logs, few ids are most of what comes.
        f"c{i:02}": (rng.random(shape) ** 3 * size).astype(np.int64)
        for i, size in enumerate(VOCABULARIES)
    }
    features["dense"] = rng.random([shape[0], 13]).astype(np.float32)
    labels = rng.integers(0, 2, shape).astype(np.float32)
    return (
        tf.data.Dataset.from_tensor_slices((features, labels))
        .batch(params["batch_size"], drop_remainder=True)
        .cache()
        .repeat()
        .prefetch(4)
    )


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    dense = features.pop("dense")
    layer = v1.feature_column.input_layer(features, params["columns"])
    hidden = tf.concat([layer, dense], 1)
    for i, width in enumerate((64, 32, 1)):
        with v1.variable_scope(f"layer_{i}"):
            kernel = v1.get_variable("kernel", [int(hidden.shape[-1]), width])
            bias = v1.get_variable("bias", [width])
        hidden = hidden @ kernel + bias
        if width > 1:
            hidden = tf.nn.relu(hidden)
    loss = tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=hidden)
    )
    train_op = v1.train.AdagradOptimizer(0.05).minimize(
        loss, v1.train.get_global_step()
    )
    if hasattr(v1, "estimator"):
        made = v1.estimator.tpu.TPUEstimatorSpec
    else:
        from tfembed.estimator.tpu import TPUEstimatorSpec as made
    return made(mode, loss=loss, train_op=train_op)
