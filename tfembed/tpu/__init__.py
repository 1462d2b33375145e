"""Estimates a model's memory and time on a TPU: `estimate`."""

from tfembed.tpu.estimate import Estimate, estimate

__all__ = ["Estimate", "estimate"]
