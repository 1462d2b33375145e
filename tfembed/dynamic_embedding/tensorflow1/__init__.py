"""Graphs, sessions and optimizers of TensorFlow 1."""
