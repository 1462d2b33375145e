"""Update rules written by users."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tfembed import errors
from tfembed.optimizers import interface

__all__ = ["CustomOptimizer"]

_TUPLES = ("slot_names", "slot_initializers", "hyperparameters", "slot_dims")


@dataclasses.dataclass(frozen=True)
class CustomOptimizer(interface.Optimizer):
    """Updates one row by a function of tensors.

    Like `tf.tpu.experimental.embedding.CustomOptimizer`, which is accepted
    too. It works everywhere, but is slower than the other rules, which are
    fused. The gradients of a row are summed over the global batch, and the
    function is applied once to each looked-up row.

    Attributes:
      custom_computation: called as fn(gradient, row, slots, learning_rate,
        hyperparameters): gradient and row float32 [dim]; slots a tuple of
        float32 [dim], in the order of slot_names; learning_rate float32 [];
        hyperparameters a tuple of float32 []. It returns the new row, or a
        tuple (row, slots), and is vectorized over rows.
      learning_rate: as in `Optimizer`.
      slot_names: the names of the slots; None: no slots.
      slot_initializers: one per slot, called as initializer(shape, dtype=...).
        In a table without a vocabulary, whose rows are inserted one by one, an
        initializer must return the same number for all elements.
      hyperparameters: numbers, or functions without arguments.
      slot_dims: None, or the rank, 1 or 2, of each slot's variable. Ignored,
        as in TensorFlow 2.21: all slots have the shape of the table.

    Raises:
      tfembed.errors.ArgumentError: a value is not allowed.
    """

    is_fused: ClassVar[bool] = False

    custom_computation: Callable[..., Any]
    learning_rate: interface.LearningRate = 0.01
    # Converted to tuples, so that equal descriptions have equal hashes.
    slot_names: Sequence[str] | None = None  # type: ignore[assignment]  # A property of Optimizer.
    slot_initializers: Sequence[Callable[..., tf.Tensor]] | None = None
    hyperparameters: Sequence[interface.LearningRate] | None = None
    slot_dims: Sequence[int] | None = None

    # The common parameters, which a custom optimizer does not have.
    use_gradient_accumulation: bool = dataclasses.field(
        default=True, init=False, repr=False
    )
    clip_weight_min: float | None = dataclasses.field(
        default=None, init=False, repr=False
    )
    clip_weight_max: float | None = dataclasses.field(
        default=None, init=False, repr=False
    )
    weight_decay_factor: float | None = dataclasses.field(
        default=None, init=False, repr=False
    )
    multiply_weight_decay_factor_by_learning_rate: bool | None = (
        dataclasses.field(default=None, init=False, repr=False)
    )
    clipvalue: interface.ClipValue = dataclasses.field(
        default=None, init=False, repr=False
    )

    def __post_init__(self) -> None:
        if not callable(self.custom_computation):
            raise errors.ArgumentError(
                "`custom_computation` must be a function; got "
                f"{self.custom_computation!r}."
            )
        for name in _TUPLES:
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        names, initializers = self.slot_names, self.slot_initializers
        if len(names) != len(initializers):  # type: ignore[arg-type]
            raise errors.ArgumentError(
                f"The number of slot_names ({len(names)}) must match the "  # type: ignore[arg-type]
                f"number of slot_initializers ({len(initializers)})."  # type: ignore[arg-type]
            )
        _check_slot_dims(self.slot_dims or (), names or ())
        rate = interface.as_learning_rate(self.learning_rate)
        object.__setattr__(self, "learning_rate", rate)

    def rule_text(self) -> str:
        """A text that identifies this optimizer within the process."""
        return f"custom {id(self.custom_computation)}"

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The initial value of each slot.

        Raises:
          tfembed.errors.ArgumentError: an initializer returns several values.
        """
        return {
            name: _constant_of(self.slot_initializer(name), name)
            for name in self.slot_names or ()
        }

    def slot_initializer(self, name: str) -> Callable[..., tf.Tensor]:
        """Returns the initializer of a slot of a static table."""
        return self.slot_initializers[self.slot_names.index(name)]  # type: ignore[index, union-attr]

    def check_fits_table(self, name: str, *, has_vocabulary: bool) -> None:
        """Raises ArgumentError if the table cannot initialize the slots."""
        if not has_vocabulary:
            try:
                dict(self.slot_initial_values)
            except errors.ArgumentError as error:
                raise errors.ArgumentError(
                    f"Table {name!r} has no vocabulary: {error}"
                ) from None

    def _rule_parameters(self) -> Mapping[str, float | bool]:
        return {}


def _check_slot_dims(dims: Sequence[int], names: Sequence[str]) -> None:
    if dims and len(dims) != len(names):
        raise errors.ArgumentError(
            f"The number of slot_dims ({len(dims)}) must match the number of "
            f"slot_names ({len(names)})."
        )
    for name, dim in zip(names, dims, strict=False):
        if dim not in (1, 2):
            raise errors.ArgumentError(
                f"Unsupported slot dim {dim!r} for slot {name!r}: `slot_dims` "
                "must be 1 or 2 each."
            )


def _constant_of(initializer: Callable[..., tf.Tensor], slot: str) -> float:
    numbers = np.unique(np.asarray(initializer([8, 1], dtype=tf.float32)))
    if numbers.size != 1:
        raise errors.ArgumentError(
            f"slot {slot!r} must start from one number, and its initializer "
            f"gives {numbers.size} different ones; use tf.constant_initializer."
        )
    return float(numbers[0])
