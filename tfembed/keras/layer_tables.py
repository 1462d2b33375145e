"""The tables of a layer, as files and exported functions hold them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfembed import embedding, ops

__all__ = ["LayerTables"]


class LayerTables(tf.__internal__.tracking.AutoTrackable):
    """Tracks an embedding's tables, for files under a name that is always one.

    To functions it is a variable that they use: Keras' export saves what a
    function uses, and looks for nothing but variables. It is none for tapes.

    Args:
      name: of the layer, for errors.
      tables: whose tables they are.
      variable: one of the layer's, whose handle stands for all.
    """

    # What makes an object a variable to TensorFlow.
    _should_act_as_resource_variable = True
    trainable = False

    def __init__(
        self, name: str, tables: embedding.TPUEmbedding, variable: Any
    ) -> None:
        super().__init__()
        self.name = name
        self.embedding = tables
        self._variable = variable

    @property
    def handle(self) -> tf.Tensor:
        """A resource; under a strategy, that of the running replica."""
        return self._variable.handle

    def built(self) -> LayerTables:
        """Itself, with all tables there to be saved and restored."""
        self.embedding.build()
        return self

    def record_access(self) -> None:
        """Tells the function that is being traced that it uses the tables."""
        ops.record_access(self.built())

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Tells a SavedModel that this is an object with tables, no variable."""
        del options
        proto.user_object.identifier = "_generic_user_object"
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1
