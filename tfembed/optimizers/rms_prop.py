"""RMSProp."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers.rms_prop_parameters import RMSPropParameters

__all__ = ["RMSProp"]


@dataclasses.dataclass(frozen=True)
class RMSProp(RMSPropParameters):
    """RMSProp (Tieleman and Hinton, 2012, lecture 6.5), on looked-up rows alone:

        s  = rho * s + (1 - rho) * g * g
        m  = momentum * m + learning_rate * g / sqrt(s + epsilon)
        w -= m

    What TPUs call `RmsPropParameters` (optimization_parameters.proto), whose
    source is TensorFlow's ApplyRMSProp.

    Slots: ms s and mom m, both from 0. rho is in [0, 1), epsilon is positive.
    The common parameters are those of `Optimizer`, by keyword.

    Raises:
      tfembed.errors.ArgumentError: a parameter that is not allowed.
    """

    rule_name: ClassVar[str] = "rms_prop"

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and what they start from."""
        return {"ms": 0.0, "mom": 0.0}
