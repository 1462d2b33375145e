"""Neural collaborative filtering by a TPUEstimator, on MovieLens 100K.

    python examples/estimator_ncf.py --data ml-100k.inter

trains NeuMF (He et al., 2017) on simulated replicas with four tables in an
EmbeddingConfigSpec, evaluates it as it goes by `train_and_evaluate`, predicts,
exports the model, serves it, and prints HR@10 beside what the paper reports.
Without the file it draws users of its own, and says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from movielens import leave_one_out

from tfembed import estimator as tf_estimator
from tfembed.data import read_histories
from tfembed.errors import DataError

v1 = tf.compat.v1
tpu = tf_estimator.tpu

DEFAULT_DATA = (
    pathlib.Path(__file__).parents[2] / "shared/data/ml-100k/ml-100k.inter"
)
SHOWN = 10
# NeuMF without pre-training, 64 factors (their table 2).
PUBLISHED = 0.705


@dataclasses.dataclass(frozen=True)
class Options:
    """The sizes of the model and of its training.

    Attributes:
      factors: floats of the last layer, and of a row in the factorization.
      batch_size: of a step of all replicas.
      replicas: how many are simulated; 0: the CPU path, `use_tpu=False`.
      epochs: passes over the pairs.
      negatives: items without feedback for each pair.
      rate: of Adam, for tables and layers.
      vocabulary: False: tables that grow with their ids.
    """

    factors: int = 32
    batch_size: int = 1024
    replicas: int = 2
    epochs: int = 12
    negatives: int = 4
    rate: float = 0.001
    vocabulary: bool = True


def embedding_spec(
    data: leave_one_out.Interactions, options: Options
) -> tpu.experimental.EmbeddingConfigSpec:
    """The four tables: users and items, for the factorization and the layers."""

    def corrected_rate(global_step: tf.Tensor) -> tf.Tensor:
        # TPUs have Adam without bias correction: the rate corrects it.
        t = tf.cast(global_step, tf.float32) + 1.0
        return options.rate * tf.sqrt(1 - 0.999**t) / (1 - 0.9**t)

    def table(size: int, dim: int) -> tpu.experimental.TableConfig:
        return tpu.experimental.TableConfig(
            size if options.vocabulary else None,
            dim,
            v1.truncated_normal_initializer(stddev=0.01),
            combiner=None,
            learning_rate_fn=corrected_rate,
        )

    sizes = {"user": data.num_users, "item": data.num_items}
    dims = {"mf": options.factors, "mlp": 2 * options.factors}
    names = [(part, kind) for part in dims for kind in sizes]
    return tpu.experimental.EmbeddingConfigSpec(
        feature_to_config_dict={
            f"{part}_{kind}": tpu.experimental.FeatureConfig(
                f"{part}_{kind}_table"
            )
            for part, kind in names
        },
        table_to_config_dict={
            f"{part}_{kind}_table": table(sizes[kind], dims[part])
            for part, kind in names
        },
        optimization_parameters=tpu.experimental.AdamParameters(options.rate),
    )


def model_fn(features, labels, mode, params):
    """NeuMF: a factorization beside three layers, whose ends become a logit."""
    hidden = tf.concat([features["mlp_user"], features["mlp_item"]], 1)
    for i, width in enumerate((4, 2, 1)):
        hidden = tf.nn.relu(_dense(hidden, width * params["factors"], f"l{i}"))
    product = features["mf_user"] * features["mf_item"]
    logits = _dense(tf.concat([product, hidden], 1), 1, "logit")[:, 0]
    if mode == tf_estimator.ModeKeys.PREDICT:
        scores = {"score": tf.sigmoid(logits)}
        return tpu.TPUEstimatorSpec(
            mode,
            predictions=scores,
            export_outputs={
                "serving_default": tf_estimator.export.PredictOutput(scores)
            },
        )
    loss = tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    if mode == tf_estimator.ModeKeys.EVAL:
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(ranking_metrics, [logits])
        )
    optimizer = v1.train.AdamOptimizer(params["rate"])
    if params["use_tpu"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, v1.train.get_global_step()),
    )


def _dense(inputs, width, name):
    with v1.variable_scope(name):
        kernel = v1.get_variable(
            "kernel",
            [inputs.shape[-1], width],
            initializer=v1.glorot_uniform_initializer(),
        )
        bias = v1.get_variable(
            "bias", [width], initializer=v1.zeros_initializer()
        )
    return inputs @ kernel + bias


def ranking_metrics(logits):
    """HR@10 and NDCG@10 of the users of a batch, each with 100 candidates."""
    scores = tf.reshape(logits, [-1, leave_one_out.NUM_CANDIDATES])
    rank = tf.math.count_nonzero(
        scores[:, 1:] >= scores[:, :1], 1, dtype=tf.float32
    )
    hit = tf.cast(rank < SHOWN, tf.float32)
    gain = hit * np.log(2.0) / tf.math.log(rank + 2.0)
    return {
        "hit_rate": v1.metrics.mean(hit),
        "ndcg": v1.metrics.mean(gain),
    }


def _features(users, items):
    return {
        "mf_user": users,
        "mlp_user": users,
        "mf_item": items,
        "mlp_item": items,
    }


def train_input_fn(data, options):
    """An input_fn of pairs in a random order, without end."""

    def input_fn(params):
        size = params["batch_size"]
        spec = tf.TensorSpec([size], tf.int64)
        dataset = tf.data.Dataset.from_generator(
            lambda: leave_one_out.batches(data, size, options.negatives, 0),
            output_signature=(spec, spec, tf.TensorSpec([size], tf.float32)),
        )
        return dataset.map(
            lambda users, items, labels: (_features(users, items), labels)
        ).prefetch(4)

    return input_fn


def candidates_input_fn(data):
    """An input_fn of each user with the 100 candidates."""

    def input_fn(params):
        users = np.repeat(
            np.arange(data.num_users), leave_one_out.NUM_CANDIDATES
        )
        items = data.candidates.reshape([-1])
        labels = np.zeros(data.candidates.shape, np.float32)
        labels[:, 0] = 1.0
        return tf.data.Dataset.from_tensor_slices(
            (_features(users, items), labels.reshape([-1]))
        ).batch(params["batch_size"])

    return input_fn


def make_estimator(data, options, model_dir):
    """The estimator, with a checkpoint and an evaluation after each pass."""
    examples = len(data.users) * (1 + options.negatives)
    steps = max(1, examples // options.batch_size)
    # Whole users in the batch of each replica.
    eval_batch_size = 64 * leave_one_out.NUM_CANDIDATES
    return tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(
            model_dir=str(model_dir),
            tf_random_seed=1,
            save_checkpoints_steps=steps,
            log_step_count_steps=steps,
            keep_checkpoint_max=2,
            tpu_config=tpu.TPUConfig(
                iterations_per_loop=min(50, steps),
                num_shards=options.replicas or None,
                per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2,
            ),
        ),
        params={"factors": options.factors, "rate": options.rate},
        use_tpu=options.replicas > 0,
        train_batch_size=options.batch_size,
        eval_batch_size=eval_batch_size,
        predict_batch_size=eval_batch_size,
        export_to_tpu=False,
        embedding_config_spec=embedding_spec(data, options),
    ), steps * options.epochs


def serving_input_receiver_fn():
    """Users and items as a server gets them."""
    users = v1.placeholder(tf.int64, [None], "user")
    items = v1.placeholder(tf.int64, [None], "item")
    return tf_estimator.export.ServingInputReceiver(
        _features(users, items), {"user": users, "item": items}
    )


def run(data, options, folder) -> dict[str, float]:
    """Trains, evaluates, predicts, exports and serves.

    Returns:
      Hit rates: of popularity, as evaluated, as predicted, as served.
    """
    estimator, max_steps = make_estimator(data, options, folder / "model")
    evaluated, _ = tf_estimator.train_and_evaluate(
        estimator,
        tf_estimator.TrainSpec(train_input_fn(data, options), max_steps),
        tf_estimator.EvalSpec(
            candidates_input_fn(data),
            # Replicas and the CPU: to the end of the data.
            steps=None,
            start_delay_secs=0,
            throttle_secs=0,
        ),
    )
    predicted = [
        one["score"] for one in estimator.predict(candidates_input_fn(data))
    ]
    path = estimator.export_saved_model(
        str(folder / "export"), serving_input_receiver_fn
    )
    served = tf.saved_model.load(tf.compat.as_str(path))
    answer = served.signatures["serving_default"](
        user=tf.repeat(
            tf.range(data.num_users, dtype=tf.int64),
            leave_one_out.NUM_CANDIDATES,
        ),
        item=tf.constant(data.candidates.reshape([-1])),
    )["score"]
    popularity = np.bincount(data.items, minlength=data.num_items)

    def hits(scores):
        scores = np.reshape(scores, data.candidates.shape)
        return leave_one_out.hit_rate(scores, SHOWN)

    return {
        "what is popular": hits(popularity[data.candidates]),
        "evaluated": float(evaluated["hit_rate"]),
        "predicted": hits(predicted),
        "served": hits(answer.numpy()),
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the example; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--data", type=pathlib.Path, default=DEFAULT_DATA, help="ratings"
    )
    parser.add_argument(
        "--model_dir", type=pathlib.Path, help="default: a temporary folder"
    )
    parser.add_argument(
        "--no_vocabulary",
        action="store_true",
        help="tables that grow with their ids",
    )
    for name in ("epochs", "replicas", "factors", "batch_size"):
        parser.add_argument(
            f"--{name}", type=int, default=getattr(Options, name)
        )
    given = parser.parse_args(arguments)
    tf.get_logger().setLevel("INFO")  # Loss, examples a second, metrics.
    options = Options(
        epochs=given.epochs,
        replicas=given.replicas,
        factors=given.factors,
        batch_size=given.batch_size,
        vocabulary=not given.no_vocabulary,
    )
    try:
        if given.data.exists() or given.data != DEFAULT_DATA:
            histories = read_histories(given.data)
            source = str(given.data)
        else:
            histories = leave_one_out.drawn_histories()
            source = f"a synthetic draw, as {given.data} is not there"
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(histories)} users from {source}")
    data = leave_one_out.leave_one_out(histories)
    with tempfile.TemporaryDirectory() as folder:
        figures = run(data, options, given.model_dir or pathlib.Path(folder))
    print(f"\nHR@{SHOWN}, the last item of each user among 99 others:")
    for name, figure in figures.items():
        print(f"  {name:<16}  {figure:.3f}")
    print(
        f"  {'published':<16}  {PUBLISHED:.3f}  He et al. 2017, NeuMF without "
        "pre-training, on MovieLens 1M:\n"
        f"{'':29}the same protocol, ten times the ratings"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
