"""Exports for TPUs: puts model_fns and computations on a TPU's cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed.estimator.exports import saved_models
from tfembed.estimator.private import tpu_programs
from tfembed.estimator.spec import EstimatorSpec


def spec_on_tpu(
    call_model: Callable[[Any], Any], features: Any
) -> EstimatorSpec:
    """Runs a model_fn on a TPU core; returns its spec with host tensors.

    Args:
      call_model: Calls the model_fn with features.
      features: A tensor or nested tensors on the host.
    """
    specs: list[Any] = []

    def on_core(given: Any) -> list[Any]:
        spec = call_model(tf.nest.map_structure(_of_core, given))
        specs.append(spec)
        return [
            *tf.nest.flatten(spec.predictions),
            *(t for t in _export_tensors(spec) if t is not None),
        ]

    found = list(
        tpu_programs.partitioned_call(
            lambda: tpu_programs.rewrite(lambda: on_core(features))
        )
    )
    spec = specs[-1]
    count = len(tf.nest.flatten(spec.predictions))
    predictions = tf.nest.pack_sequence_as(spec.predictions, found[:count])
    rest = iter(found[count:])
    outputs = {}
    for name, output in (spec.export_outputs or {}).items():
        tensors = [
            None if tensor is None else next(rest)
            for tensor in _tensors_of(output)
        ]
        outputs[name] = _output_of(output, tensors)
    scaffold = getattr(spec, "scaffold", None)
    if getattr(spec, "scaffold_fn", None) is not None:
        scaffold = spec.scaffold_fn()
    return EstimatorSpec(
        spec.mode,
        predictions=predictions,
        export_outputs=outputs,
        scaffold=scaffold,
    )


def _of_core(tensor: Any) -> Any:
    """Copies a host tensor to the core, so that a model_fn may return it.

    A core takes no strings: these stay on the host.
    """
    return tensor if tensor.dtype == tf.string else tf.identity(tensor)


def _export_tensors(spec: Any) -> list[Any]:
    return [
        tensor
        for output in (spec.export_outputs or {}).values()
        for tensor in _tensors_of(output)
    ]


def _tensors_of(output: Any) -> list[Any]:
    """Returns the tensors of an export output; None for a missing one."""
    if isinstance(output, saved_models.ClassificationOutput):
        return [output.scores, output.classes]
    if isinstance(output, saved_models.RegressionOutput):
        return [output.value]
    return list(output.outputs.values())


def _output_of(output: Any, tensors: Sequence[Any]) -> Any:
    """Returns an export output of the same type, with other tensors."""
    if isinstance(output, saved_models.PredictOutput):
        return saved_models.PredictOutput(dict(zip(output.outputs, tensors)))
    return type(output)(*tensors)
