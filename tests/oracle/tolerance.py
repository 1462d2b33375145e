"""How far a float32 result may be from the oracle."""

from __future__ import annotations

import dataclasses

import numpy as np

RELATIVE = 1e-5
ABSOLUTE = 1e-7


@dataclasses.dataclass
class Terms:
    """A sum and the sum of the absolute values of what was summed."""

    value: np.ndarray
    size: np.ndarray

    @classmethod
    def of(cls, value) -> Terms:
        value = np.asarray(value, np.float64)
        return cls(value, np.abs(value))

    def __add__(self, other: Terms) -> Terms:
        return Terms(self.value + other.value, self.size + other.size)

    def __mul__(self, factor) -> Terms:
        return Terms(self.value * factor, self.size * np.abs(factor))

    def squared(self) -> Terms:
        """The square; an error of the value counts twice."""
        return Terms(self.value**2, 2 * np.abs(self.value) * self.size)

    def clipped(self, low: float, high: float) -> Terms:
        return Terms(np.clip(self.value, low, high), self.size)

    def well_posed(self) -> bool:
        """Each element is 0 or at least a tenth of its absolute terms."""
        return bool(
            np.all((self.value == 0) | (np.abs(self.value) >= 0.1 * self.size))
        )


def as_terms(value: np.ndarray | Terms) -> Terms:
    """Terms as they are; anything else has no error yet."""
    return value if isinstance(value, Terms) else Terms.of(value)


def assert_close(actual, expected: Terms, what: str = "result") -> None:
    actual = np.asarray(actual, np.float64)
    assert actual.shape == expected.value.shape, (
        f"{what}: shape {actual.shape}, expected {expected.value.shape}"
    )
    allowed = RELATIVE * expected.size + ABSOLUTE
    error = np.abs(actual - expected.value)
    worst = (
        np.unravel_index(np.argmax(error - allowed), error.shape)
        if (error.size)
        else None
    )
    assert worst is None or error[worst] <= allowed[worst], (
        f"{what}{list(map(int, worst))}: got {actual[worst]}, expected "
        f"{expected.value[worst]}, off by {error[worst]:.3g}, allowed "
        f"{allowed[worst]:.3g}"
    )
