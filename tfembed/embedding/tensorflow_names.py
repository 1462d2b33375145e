"""What TensorFlow's TPUEmbedding calls its parts, for layers on top of it.

Private names there; layers and tests of other libraries read them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.host_engine import HostEngine
from tfembed.embedding.output_shapes import OutputShapes
from tfembed.embedding.plan import EmbeddingPlan

__all__ = ["TensorFlowNames"]


class TensorFlowNames(tf.__internal__.tracking.AutoTrackable):
    """The private names. Base of `TPUEmbedding`."""

    _engine: HostEngine | None
    _plan: EmbeddingPlan
    _shapes: OutputShapes
    # With False, enqueue does not build: the shapes must be known before.
    _verify_output_shapes_on_enqueue = True

    def flush(self) -> None:
        """Applies the update that waits for the next step."""
        raise NotImplementedError

    @property
    def _built(self) -> bool:
        return self._engine is not None

    @property
    def _feature_config(self) -> Any:
        return self._plan.feature_config

    @property
    def _table_config(self) -> list[Any]:
        return list(self._plan.tables)

    @property
    def _output_shapes(self) -> list[tf.TensorShape]:
        return list(self._shapes.shapes)

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
        if tf.executing_eagerly():
            self.flush()
        return {
            config.name: {"parameters": table.parameters, **table.slots}
            for config, table in zip(
                self._plan.tables, engine.tables, strict=True
            )
        }

    def _load_variables(self) -> None:
        """Nothing to do: the engine works on the variables."""

    def _retrieve_variables(self) -> None:
        """Brings the variables up to the last step."""
        self.flush()

    def _trackable_children(
        self, save_type: str = "checkpoint", **arguments: Any
    ) -> dict[str, Any]:
        # Asked before a checkpoint is saved, and before one is restored.
        if tf.executing_eagerly():
            self.flush()
        children: dict[str, Any] = super()._trackable_children(
            save_type, **arguments
        )
        return children

    def _engine_or_new(self) -> HostEngine:
        raise NotImplementedError

    def _check_shapes_are_known(self) -> None:
        if not self._verify_output_shapes_on_enqueue and not self._built:
            raise errors.StateError(
                "Configured not to check output shapes on each enqueue() call; "
                "please ensure build() was called with global input shapes to "
                "initialize the embedding for inference."
            )
