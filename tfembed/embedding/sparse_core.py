"""TensorFlow's names of what TPUs with SparseCores have."""

from __future__ import annotations

from typing import Any

from tfembed import errors

__all__ = ["SparseCoreEmbeddingConfig", "TPUEmbeddingV2"]


class _OfSparseCores:
    """Raises when it is made."""

    _way_out: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(
            f"{type(self).__name__} is for the SparseCores of TPUs (v5p, v6e), "
            f"which are not used in this release. {self._way_out}"
        )


class TPUEmbeddingV2(_OfSparseCores):
    """Not in this release: raises UnsupportedError."""

    _way_out = (
        "TPUEmbedding trains the same tables under any strategy, on such TPUs "
        "too, with enqueue, dequeue and apply_gradients in place of the call; "
        "TPUEmbeddingV0 has the call, for a tape. TPUEmbeddingForServing reads "
        "the checkpoints of TensorFlow's TPUEmbeddingV2."
    )


class SparseCoreEmbeddingConfig(_OfSparseCores):
    """Not in this release: raises UnsupportedError."""

    _way_out = (
        "Leave it out: TPUEmbedding needs no bound on the ids of a table, and "
        "stacks tables by itself where that is faster."
    )
