"""What rows of a table cannot be used for, though variables can."""

from __future__ import annotations

from typing import Any

from tfembed import errors

__all__ = ["RefusedUses"]


class RefusedUses:
    """Says what to do instead to what takes rows of a table for a variable.

    Each property is what one user of variables asks for first. Those that it
    may do without raise an AttributeError, as its `hasattr` expects.

    Attributes:
      name: of the lookup.
      params: the `Variable` that the rows come from.
    """

    name: Any
    params: Any

    @property
    def initial_value(self) -> Any:
        """Not there: raises UnsupportedError."""
        raise errors.UnsupportedError(
            f"'{self.name}' has no initial value: it stands for rows of the "
            f"table '{self.params.name}', other ones for other ids. What copies "
            "or averages variables (tf.train.ExponentialMovingAverage) takes "
            "dense ones; list these."
        )

    @property
    def _save_slice_info(self) -> Any:
        """What Savers ask the variables that they are given for first."""
        raise errors.UnsupportedError(
            f"'{self.name}' stands for rows of the table '{self.params.name}'; "
            "they are saved with the table. Give a Saver the Variable itself, or "
            "no `var_list`."
        )

    def _ref(self) -> Any:
        """What TensorFlow's own optimizers ask variables of a graph for."""
        raise errors.UnsupportedError(
            self._not_alone("tf.compat.v1.train optimizers")
        )

    @property
    def constraint(self) -> Any:
        """What tf_keras' optimizers without slots ask for first."""
        raise errors.UnsupportedError(self._not_alone("Keras' optimizers"))

    @property
    def _unique_id(self) -> str:
        """What its other optimizers ask for; it may be missing."""
        raise AttributeError(self._not_alone("Keras' optimizers"))

    def _not_alone(self, optimizers: str) -> str:
        return (
            f"'{self.name}' stands for rows of the table '{self.params.name}', "
            f"which {optimizers} do not train by themselves. Wrap the optimizer "
            "in a DynamicEmbeddingOptimizer, or give it the dense variables "
            "alone, as `var_list`."
        )

    @property
    def sparse_read(self) -> Any:
        """Not there: rows are read by key, with `embedding_lookup`."""
        raise AttributeError(f"'{self.name}' has no sparse_read.")

    @property
    def gather_nd(self) -> Any:
        """Not there: rows are read by key, with `embedding_lookup`."""
        raise AttributeError(f"'{self.name}' has no gather_nd.")
