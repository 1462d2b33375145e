"""Estimators for today's TensorFlow, by the names of tf.compat.v1.estimator.

A program that begins with `from tensorflow.compat.v1 import estimator` runs
with `from tfembed import estimator` in its place.
"""

from __future__ import annotations

from tfembed.estimator.embeddings.embedding_column import embedding_column
from tfembed.estimator.estimator import Estimator
from tfembed.estimator.run_config import RunConfig
from tfembed.estimator.spec import EstimatorSpec, ModeKeys
from tfembed.estimator.warm_start import VocabInfo, WarmStartSettings

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "ModeKeys",
    "RunConfig",
    "VocabInfo",
    "WarmStartSettings",
    "embedding_column",
]
