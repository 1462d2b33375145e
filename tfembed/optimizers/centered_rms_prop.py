"""RMSProp with the variance of the gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfembed.optimizers.rms_prop import RMSPropParameters

__all__ = ["CenteredRMSProp"]


@dataclasses.dataclass(frozen=True)
class CenteredRMSProp(RMSPropParameters):
    """RMSProp with the variance of the gradients, not their mean square:

        s  = rho * s + (1 - rho) * g * g
        a  = rho * a + (1 - rho) * g
        m  = momentum * m
             + learning_rate * g / sqrt(max(s - a * a, 0) + epsilon)
        w -= m

    TPUs call this rule `CenteredRmsPropParameters`
    (optimization_parameters.proto); it equals TensorFlow's
    ApplyCenteredRMSProp (Graves, 2013, equations 38 to 45), except that there
    s - a * a may round to less than 0 and give a NaN; here it is then 0.

    Slots: ms s, mom m and mg a, all from 0. rho is in [0, 1), epsilon is
    positive. The common parameters are those of `Optimizer`, by keyword.

    Raises:
      tfembed.errors.ArgumentError: a parameter is not allowed.
    """

    rule_name: ClassVar[str] = "centered_rms_prop"

    @property
    def slot_initial_values(self) -> Mapping[str, float]:
        """The slots and their initial values."""
        return {"ms": 0.0, "mom": 0.0, "mg": 0.0}
