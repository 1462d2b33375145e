"""Embedding tables of a TPUEstimator, in host memory or in a TPU's engine."""
