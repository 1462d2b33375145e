"""Simulated replicas of a step of TensorFlow 1, and the order of its ops."""

from tfembed.estimator.replicas.simulated import Replicas, replicate
from tfembed.estimator.replicas.step_graph import COLLECTIVES
from tfembed.estimator.replicas.variable_order import (
    order_input_before_writes,
    order_reads_before_writes,
)

__all__ = [
    "COLLECTIVES",
    "Replicas",
    "order_input_before_writes",
    "order_reads_before_writes",
    "replicate",
]
