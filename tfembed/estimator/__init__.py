"""Estimators for current TensorFlow, with the names of tf.compat.v1.estimator.

A program with `from tensorflow.compat.v1 import estimator` runs with `from
tfembed import estimator` instead.
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as _tf

from tfembed import not_in_release
from tfembed.estimator import experimental, export, inputs
from tfembed.estimator.embeddings.feature_columns import embedding_column
from tfembed.estimator.estimator import Estimator
from tfembed.estimator.exports.exporters import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
)
from tfembed.estimator.models.keras_models import model_to_estimator
from tfembed.estimator.run_config import RunConfig
from tfembed.estimator.runs.warm_start import VocabInfo, WarmStartSettings
from tfembed.estimator.spec import EstimatorSpec, ModeKeys
from tfembed.estimator.train_and_evaluate import (
    EvalSpec,
    TrainSpec,
    train_and_evaluate,
)

__all__ = [
    "BestExporter",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FeedFnHook",
    "FinalExporter",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LatestExporter",
    "LoggingTensorHook",
    "ModeKeys",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "RunConfig",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "embedding_column",
    "experimental",
    "export",
    "inputs",
    "model_to_estimator",
    "train_and_evaluate",
]

# The session hooks that tf.compat.v1.estimator had: tf.compat.v1.train defines them.
CheckpointSaverHook = _tf.compat.v1.train.CheckpointSaverHook
CheckpointSaverListener = _tf.compat.v1.train.CheckpointSaverListener
FeedFnHook = _tf.compat.v1.train.FeedFnHook
FinalOpsHook = _tf.compat.v1.train.FinalOpsHook
GlobalStepWaiterHook = _tf.compat.v1.train.GlobalStepWaiterHook
LoggingTensorHook = _tf.compat.v1.train.LoggingTensorHook
NanLossDuringTrainingError = _tf.compat.v1.train.NanLossDuringTrainingError
NanTensorHook = _tf.compat.v1.train.NanTensorHook
ProfilerHook = _tf.compat.v1.train.ProfilerHook
SecondOrStepTimer = _tf.compat.v1.train.SecondOrStepTimer
SessionRunArgs = _tf.compat.v1.train.SessionRunArgs
SessionRunContext = _tf.compat.v1.train.SessionRunContext
SessionRunHook = _tf.compat.v1.train.SessionRunHook
SessionRunValues = _tf.compat.v1.train.SessionRunValues
StepCounterHook = _tf.compat.v1.train.StepCounterHook
StopAtStepHook = _tf.compat.v1.train.StopAtStepHook
SummarySaverHook = _tf.compat.v1.train.SummarySaverHook


def __getattr__(name: str) -> Any:
    """Imports `tpu` on first use; makes classes for the old package's names."""
    if name == "tpu":
        return importlib.import_module("tfembed.estimator.tpu")
    if name in not_in_release.ESTIMATORS:
        return not_in_release.absent(name, __name__)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
