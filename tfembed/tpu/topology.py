"""Names of TPU topologies, such as "v5p:4x4x4"."""

from __future__ import annotations

import dataclasses
import math
import re

from tfembed import errors

__all__ = ["MEMORY", "Topology"]

# Bytes of a chip's memory (HBM), from Google Cloud's pages of each version.
MEMORY = {
    "v4": 32 << 30,
    "v5e": 16 << 30,
    "v5p": 95 << 30,
    "v6e": 32 << 30,
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips of one kind, and how they are laid out.

    Attributes:
      name: "kind:AxB" or "kind:AxBxC".

    Raises:
      tfembed.errors.ArgumentError: another form, or an unknown kind.
    """

    name: str

    def __post_init__(self) -> None:
        match = re.fullmatch(r"(\w+):(\d+(?:x\d+){1,2})", self.name)
        if not match or match[1] not in MEMORY or not self.chips:
            raise errors.ArgumentError(
                f"`topology` must be a kind of TPU, {', '.join(MEMORY)}, and "
                "how its chips are laid out, as in 'v5e:4x4' or 'v5p:4x4x4'; "
                f"got {self.name!r}."
            )

    @property
    def kind(self) -> str:
        """Of the chips."""
        return self.name.partition(":")[0]

    @property
    def chips(self) -> int:
        """How many there are."""
        return math.prod(map(int, self.name.partition(":")[2].split("x")))

    @property
    def memory(self) -> int:
        """Bytes of one chip."""
        return MEMORY[self.kind]
