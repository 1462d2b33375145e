"""Optimizers that are wrapped, by family: Keras, legacy Keras (v2), TF 1 (v1)."""
