"""TFRA's names of graph collections."""

from __future__ import annotations

__all__ = ["GraphKeys"]


class GraphKeys:
    """Collections that programs of TensorFlow 1 may put variables into.

    As in TFRA's last releases nothing is put there by itself:
    `tf.compat.v1.add_to_collection(GraphKeys.DYNAMIC_EMBEDDING_VARIABLES, v)`.
    """

    DYNAMIC_EMBEDDING_VARIABLES = "dynamic_embedding_variables"
    TRAINABLE_DYNAMIC_EMBEDDING_VARIABLES = (
        "trainable_dynamic_embedding_variables"
    )
