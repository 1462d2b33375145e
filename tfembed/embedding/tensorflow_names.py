"""What TensorFlow's TPUEmbedding calls its parts, for layers on top of it.

Private names there; layers and tests of other libraries read them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding import private
from tfembed.embedding.engines.owner import EngineOwner
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.tpu.config_proto import config_proto

__all__ = ["PlanNames", "TensorFlowNames"]


class PlanNames:
    """Those of what was planned. Base of all classes of embeddings."""

    _plan: EmbeddingPlan

    @property
    def _feature_config(self) -> Any:
        return self._plan.feature_config

    @property
    def _table_config(self) -> list[Any]:
        return list(self._plan.tables)

    def _variables_of(self, tables: Sequence[Any]) -> dict[str, dict[str, Any]]:
        """By table and "parameters" or slot, of `tables`, one for each."""
        return {
            config.name: {"parameters": table.parameters, **table.slots}
            for config, table in zip(self._plan.tables, tables, strict=True)
        }


class TensorFlowNames(PlanNames, EngineOwner):
    """The private names. Base of `TPUEmbedding`."""

    # With False, enqueue does not build: the shapes must be known before.
    _verify_output_shapes_on_enqueue = True

    @property
    def _built(self) -> bool:
        return self._engine is not None

    @property
    def _output_shapes(self) -> list[tf.TensorShape]:
        return list(self._shapes.shapes)

    @_output_shapes.setter
    def _output_shapes(self, shapes: Sequence[Any]) -> None:
        self._shapes = dataclasses.replace(
            self._shapes, shapes=[tf.TensorShape(shape) for shape in shapes]
        )

    @property
    def _dynamic_learning_rates(self) -> list[Any]:
        """The distinct functions, in the order of their first table."""
        rates = [
            rule.learning_rate
            for rule in self._plan.optimizers
            if rule is not None and callable(rule.learning_rate)
        ]
        return list(dict.fromkeys(rates))

    @property
    def _variables(self) -> dict[str, dict[str, Any]]:
        engine = self._engine_or_new()
        self._bring_up_to_date()
        return self._variables_of(engine.tables)

    @property
    def _pipeline_execution_with_tensor_core(self) -> bool:
        return self._options.is_pipelined

    def _create_config_proto(self) -> Any:
        """The TPUEmbeddingConfiguration of the configs and output shapes."""
        return config_proto(
            self._plan,
            self._shapes,
            self._replicas.strategy,
            rates=self._dynamic_learning_rates,
            is_pipelined=self._options.is_pipelined,
        )

    def _load_variables(self) -> None:
        """Lets the engines take over what the variables hold."""
        if self._engine is not None:
            self._engine.load()

    def _trackable_children(
        self, save_type: str = "checkpoint", **arguments: Any
    ) -> dict[str, Any]:
        # Asked before a checkpoint is saved, and before one is restored.
        self._bring_up_to_date()
        children: dict[str, Any] = super()._trackable_children(
            save_type, **arguments
        )
        if save_type == "savedmodel" and self._engine is not None:
            # For functions of the model that train: one that has none is served
            # by TensorFlow alone. Checkpoints have no steps.
            captured = private.saved_captures(self, children.values())
            resources = self._engine.resources
            if captured is None or any(
                id(_handle(resource)) in captured for resource in resources
            ):
                for i, resource in enumerate(resources):
                    children[f"_step_resource_{i}"] = resource
        return children

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        # An asynchronous checkpoint asks for the children once, and for this in
        # each save, before it copies the variables.
        self._retrieve_variables()

    def _check_shapes_are_known(self) -> None:
        if not self._verify_output_shapes_on_enqueue and not self._built:
            raise errors.ArgumentError(
                "Configured not to check output shapes on each enqueue() call; "
                "please ensure build() was called with global input shapes to "
                "initialize the embedding for inference."
            )


def _handle(resource: Any) -> tf.Tensor:
    """Of a variable, or of a queue."""
    if isinstance(resource, tf.Variable):
        return resource.handle
    return resource.resource_handle
