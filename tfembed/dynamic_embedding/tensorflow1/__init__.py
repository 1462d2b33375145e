"""Graphs and sessions of TensorFlow 1, and the optimizers of that time."""
