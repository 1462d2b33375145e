"""TPUEstimator and its configuration, as in tf.compat.v1.estimator.tpu."""

import tensorflow as tf

from tfembed.estimator.tpu import experimental
from tfembed.estimator.tpu.config import (
    InputPipelineConfig,
    RunConfig,
    TPUConfig,
)
from tfembed.estimator.tpu.spec import TPUEstimatorSpec
from tfembed.estimator.tpu.tpu_estimator import (
    ExportSavedModelApiVersion,
    TPUEstimator,
)

CrossShardOptimizer = tf.compat.v1.tpu.CrossShardOptimizer

__all__ = [
    "CrossShardOptimizer",
    "ExportSavedModelApiVersion",
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "experimental",
]
