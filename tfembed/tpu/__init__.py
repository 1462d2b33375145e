"""What a model would take on a TPU: `estimate`."""

from tfembed.tpu.estimate import estimate
from tfembed.tpu.report import Estimate

__all__ = ["Estimate", "estimate"]
