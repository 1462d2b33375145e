"""Exports for TPUs: puts model_fns and computations on a TPU's cores."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator import exports, input_functions, private
from tfembed.estimator.spec import EstimatorSpec, ModeKeys


class BatchConfig(
    collections.namedtuple(
        "BatchConfig",
        [
            "num_batch_threads",
            "max_batch_size",
            "batch_timeout_micros",
            "allowed_batch_sizes",
            "max_enqueued_batches",
        ],
    )
):
    """Configures how a served graph batches requests.

    Args:
      num_batch_threads: The number of batches that are processed at a time.
      max_batch_size: The maximum number of examples of a batch.
      batch_timeout_micros: How long a batch waits for more requests.
      allowed_batch_sizes: The sizes to which batches are padded, in ascending
        order; the last is max_batch_size.
      max_enqueued_batches: The maximum number of batches that wait.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class describes it
        cls,
        num_batch_threads: int,
        max_batch_size: int,
        batch_timeout_micros: int,
        allowed_batch_sizes: Sequence[int] | None,
        max_enqueued_batches: int = 100,
    ) -> BatchConfig:
        return super().__new__(
            cls,
            num_batch_threads,
            max_batch_size,
            batch_timeout_micros,
            allowed_batch_sizes,
            max_enqueued_batches,
        )


def model_fn_inference_on_tpu(
    model_fn: Callable[..., Any],
    features: Any,
    labels: Any = None,
    config: Any = None,
    params: Any = None,
    batch_config: BatchConfig | None = None,
) -> EstimatorSpec:
    """Runs a whole model_fn on a TPU core, for prediction.

    Call it in a model_fn whose estimator exports with
    `ExportSavedModelApiVersion.V2`; with V1 the estimator does this itself.

    Args:
      model_fn: The function to run there.
      features, labels, config, params: The arguments of the model_fn.
      batch_config: How to batch requests; None: without batching.

    Returns:
      The model_fn's spec, with tensors on the host.
    """
    return spec_on_tpu(
        lambda given: input_functions.call_with_known(
            model_fn,
            {
                "features": given,
                "labels": labels,
                "mode": ModeKeys.PREDICT,
                "config": config,
                "params": params,
            },
        ),
        features,
        batch_config,
    )


def inference_on_tpu(
    computation: Callable[..., Any],
    inputs_to_tpu: Sequence[Any],
    num_batch_threads: int,
    max_batch_size: int | None,
    batch_timeout_micros: int,
    allowed_batch_sizes: Sequence[int] | None = None,
    max_enqueued_batches: int = 100,
) -> Any:
    """Runs a computation on a TPU core, with batched requests.

    Call it in a model_fn whose estimator exports with
    `ExportSavedModelApiVersion.V2`.

    Args:
      computation: A function of tensors.
      inputs_to_tpu: The arguments of the computation.
      num_batch_threads, max_batch_size, batch_timeout_micros,
        allowed_batch_sizes, max_enqueued_batches: As in `BatchConfig`; without
        max_batch_size requests are not batched.

    Returns:
      A list of the tensors that the computation returns, on the host.
    """
    batch_config = None
    if max_batch_size:
        batch_config = BatchConfig(
            num_batch_threads,
            max_batch_size,
            batch_timeout_micros,
            allowed_batch_sizes,
            max_enqueued_batches,
        )
    return _batched(
        lambda *given: private.partitioned_call(
            lambda: private.rewrite(computation, list(given))
        ),
        inputs_to_tpu,
        batch_config,
    )


def spec_on_tpu(
    call_model: Callable[[Any], Any],
    features: Any,
    batch_config: BatchConfig | None = None,
) -> EstimatorSpec:
    """Runs a model_fn on a TPU core; returns its spec with host tensors.

    Args:
      call_model: Calls the model_fn with features.
      features: A tensor or nested tensors on the host.
      batch_config: How to batch requests; None: without batching.
    """
    specs: list[Any] = []

    def on_core(given: Any) -> list[Any]:
        spec = call_model(tf.nest.map_structure(_of_core, given))
        specs.append(spec)
        return [
            *tf.nest.flatten(spec.predictions),
            *(t for t in _export_tensors(spec) if t is not None),
        ]

    def on_host(*flat: Any) -> Any:
        given = tf.nest.pack_sequence_as(features, flat)
        return private.partitioned_call(
            lambda: private.rewrite(lambda: on_core(given))
        )

    found = list(_batched(on_host, tf.nest.flatten(features), batch_config))
    spec = specs[-1]
    count = len(tf.nest.flatten(spec.predictions))
    predictions = tf.nest.pack_sequence_as(spec.predictions, found[:count])
    rest = iter(found[count:])
    outputs = {}
    for name, output in (spec.export_outputs or {}).items():
        tensors = [
            None if tensor is None else next(rest)
            for tensor in export_output_to_tensors(output)
        ]
        outputs[name] = clone_export_output_with_tensors(output, tensors)
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
        for tensor in export_output_to_tensors(output)
    ]


def _batched(
    function: Callable[..., Any],
    tensors: Sequence[Any],
    batch_config: BatchConfig | None,
) -> Any:
    if batch_config is None:
        return function(*tensors)
    batch = tf.nondifferentiable_batch_function(
        num_batch_threads=batch_config.num_batch_threads,
        max_batch_size=batch_config.max_batch_size,
        batch_timeout_micros=batch_config.batch_timeout_micros,
        allowed_batch_sizes=batch_config.allowed_batch_sizes,
        max_enqueued_batches=batch_config.max_enqueued_batches,
        autograph=False,
    )
    return batch(function)(*tensors)


def export_output_to_tensors(output: Any) -> list[Any]:
    """Returns the tensors of an export output; None for a missing one.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) the output has another
        type.
    """
    if isinstance(output, exports.ClassificationOutput):
        return [output.scores, output.classes]
    if isinstance(output, exports.RegressionOutput):
        return [output.value]
    if isinstance(output, exports.PredictOutput):
        return list(output.outputs.values())
    raise _unknown(output)


def clone_export_output_with_tensors(
    output: Any, tensors: Sequence[Any]
) -> Any:
    """Returns an export output of the same type, with other tensors.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) the output has another
        type, or the number of tensors differs.
    """
    count = len(export_output_to_tensors(output))
    if len(tensors) != count:
        raise errors.ArgumentError(
            f"tensors must be of length {count} for a "
            f"{type(output).__name__}; got {len(tensors)}."
        )
    if isinstance(output, exports.ClassificationOutput):
        return exports.ClassificationOutput(*tensors)
    if isinstance(output, exports.RegressionOutput):
        return exports.RegressionOutput(*tensors)
    return exports.PredictOutput(dict(zip(output.outputs, tensors)))


def _unknown(output: Any) -> errors.ArgumentError:
    return errors.ArgumentError(
        "`export_output` must have type `ClassificationOutput`, "
        f"`RegressionOutput`, or `PredictOutput`; got {output}."
    )
