"""TPUEstimator and what goes with it, as in tf.compat.v1.estimator.tpu."""

from tfembed.estimator.tpu import experimental
from tfembed.estimator.tpu.config import (
    InputPipelineConfig,
    RunConfig,
    TPUConfig,
)
from tfembed.estimator.tpu.spec import TPUEstimatorSpec

__all__ = [
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimatorSpec",
    "experimental",
]
