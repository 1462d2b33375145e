"""The public names of other packages that this release does not have.

A program that imports such a name gets a class, which raises when an instance
is made, with an error that says what to use instead.
"""

from __future__ import annotations

from typing import Any

from tfembed import errors

__all__ = ["ESTIMATORS", "SENTENCES", "absent"]

_HKV = (
    "{name} is not in this release; rows are kept in host memory. Leave "
    "`kv_creator` None: a model on a GPU reads and trains such a variable, too. "
    "`restrict_policy` bounds it."
)
_REDIS = (
    "{name} is not in this release; rows are kept in host memory. Leave "
    "`kv_creator` None, and share rows between processes by "
    "`tf.train.Checkpoint` or `save_to_file_system`."
)
_SPARSE_CORE = (
    "{name} is for the SparseCores of TPUs (v5p, v6e), which are not used in "
    "this release. "
)

_CANNED = (
    "{name} is not in this release: tfembed.estimator has no canned "
    "estimators. Build the network in a model_fn, by "
    "tf.compat.v1.feature_column.input_layer and tf_keras.layers, and give "
    "that to tfembed.estimator.Estimator."
)
_HEAD = (
    "{name} is not in this release. Give loss, train_op, eval_metric_ops and "
    "predictions to EstimatorSpec in the model_fn."
)
_TREES = "{name} is not in this release: TensorFlow Decision Forests has trees."
_PARSE_SPEC = (
    "{name} is not in this release. Call "
    "tf.feature_column.make_parse_example_spec, and add the labels' feature "
    "to what it returns."
)

# Names of tf.compat.v1.estimator and of its `experimental`.
ESTIMATORS = {
    **{
        f"{model}{kind}": _CANNED
        for model in ("Baseline", "DNN", "DNNLinearCombined", "Linear", "RNN")
        for kind in ("Classifier", "Regressor", "Estimator")
        if f"{model}{kind}" != "RNNRegressor"
    },
    **{
        f"BoostedTrees{kind}": _TREES
        for kind in ("Classifier", "Regressor", "Estimator")
    },
    **dict.fromkeys(
        (
            "BinaryClassHead",
            "Head",
            "LogisticRegressionHead",
            "MultiClassHead",
            "MultiHead",
            "MultiLabelHead",
            "PoissonRegressionHead",
            "RegressionHead",
            "add_metrics",
            "dnn_logit_fn_builder",
            "linear_logit_fn_builder",
        ),
        _HEAD,
    ),
    "classifier_parse_example_spec": _PARSE_SPEC,
    "regressor_parse_example_spec": _PARSE_SPEC,
    "KMeans": "{name} is not in this release. Cluster in a model_fn, or with "
    "scikit-learn.",
    "LinearSDCA": "{name} is not in this release. Train the linear model in a "
    "model_fn, by tf.compat.v1.train.FtrlOptimizer.",
}

# Name of the class -> why it is missing, and what to use instead.
SENTENCES = {
    "TPUEmbeddingV2": _SPARSE_CORE
    + "TPUEmbedding trains the same tables under any strategy, on such TPUs "
    "too, with enqueue, dequeue and apply_gradients in place of the call; "
    "TPUEmbeddingV0 has the call, for a tape. TPUEmbeddingForServing reads "
    "the checkpoints of TensorFlow's TPUEmbeddingV2.",
    "SparseCoreEmbeddingConfig": _SPARSE_CORE
    + "Leave it out: TPUEmbedding needs no bound on the ids of a table, and "
    "stacks tables by itself where that is faster.",
    "HkvHashTable": _HKV,
    "HkvHashTableConfig": _HKV,
    "HkvHashTableCreator": _HKV,
    "RedisTable": _REDIS,
    "RedisTableConfig": _REDIS,
    "RedisTableCreator": _REDIS,
    "HvdVariable": "{name} needs Horovod, which this release does not use. Look "
    "up through the ShadowVariable itself; its table may have several "
    "`devices`.",
    "HvdAllToAllEmbedding": "{name} (Horovod) is not in this release; use "
    "Embedding, whose table may have several `devices`.",
    "DEHvdBroadcastGlobalVariablesCallback": "{name} (Horovod) is not in this "
    "release; leave it out where one process trains.",
    "DEHvdSaver": "{name} needs Horovod, which this release does not use. Save "
    "with tf.compat.v1.train.Saver or tf.train.Checkpoint; for files of each "
    "process call `variable.save_to_file_system(dirpath, proc_size, "
    "proc_rank)`.",
    "DistributedVariableWrapper": "{name} is not in this release: dynamic "
    "variables do not run on several replicas. Use a ShadowVariable on one, or "
    "tfembed.TPUEmbedding under a strategy.",
}


def absent(name: str, module: str) -> type:
    """Makes the class that stands for a name that this release lacks.

    Args:
      name: the class's name, one of `SENTENCES` or `ESTIMATORS`.
      module: the `__name__` of the module that exports the class.

    Returns:
      A class whose constructor raises `tfembed.errors.UnsupportedError`.
    """
    sentence = (SENTENCES | ESTIMATORS)[name].format(name=name)

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(sentence)

    members = {
        "__init__": refuse,
        "__doc__": "Not in this release: raises UnsupportedError.\n\n"
        + sentence,
        "__module__": module,
    }
    return type(name, (), members)
