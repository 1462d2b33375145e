"""Hooks and helpers, as in `tf.compat.v1.estimator.experimental`."""

from __future__ import annotations

from typing import Any

from tfembed import not_in_release
from tfembed.estimator.early_stopping import (
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from tfembed.estimator.exports import build_raw_supervised_input_receiver_fn
from tfembed.estimator.in_memory_evaluator import InMemoryEvaluatorHook
from tfembed.estimator.input_functions import CheckpointInputPipelineHook
from tfembed.estimator.spec import call_logit_fn

__all__ = [
    "CheckpointInputPipelineHook",
    "InMemoryEvaluatorHook",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]


def __getattr__(name: str) -> Any:
    """Makes classes for names of the old package."""
    if name in not_in_release.ESTIMATORS:
        return not_in_release.absent(name, __name__)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
