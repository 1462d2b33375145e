"""An estimate of a model's memory and time on a TPU: `estimate`."""

from tfembed.tpu.estimate import estimate
from tfembed.tpu.report import Estimate

__all__ = ["Estimate", "estimate"]
