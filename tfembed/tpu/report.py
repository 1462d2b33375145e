"""The text of an estimate."""

from __future__ import annotations

import dataclasses
import json

from tfembed.units import as_bytes

__all__ = ["Estimate"]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A training step of all tables on TPUs, as the TPU compiler sees it.

    Attributes:
      topology: the TPUs that it is for.
      chips: the number of its chips.
      fits: whether a chip has the memory for a step.
      bytes_per_chip: what a step takes: tables, slots, inputs, outputs, what
        lies between them, code. Where it does not fit, as much as is known.
      memory_per_chip: the memory of a chip.
      table_bytes_per_chip: the part of that for tables and slots.
      interconnect_bytes: what a chip sends in a step, in one round.
      seconds: the compiler's estimate of a step in one round, without the model;
        None where it does not fit.
      not_estimated: parts of the step that it has no estimate for; `seconds` is
        without them.
    """

    topology: str
    chips: int
    fits: bool
    bytes_per_chip: int
    memory_per_chip: int
    table_bytes_per_chip: int
    interconnect_bytes: int | None
    seconds: float | None
    not_estimated: int | None

    def to_json(self) -> str:
        """All attributes, as one JSON object."""
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        """A table of text."""
        rows = {
            "topology": f"{self.topology} ({self.chips} chips)",
            "fits": "yes" if self.fits else "no",
            "memory": f"{as_bytes(self.bytes_per_chip)} of "
            f"{as_bytes(self.memory_per_chip)} a chip",
            "tables and slots": f"{as_bytes(self.table_bytes_per_chip)} a chip",
        }
        if self.seconds is not None and self.interconnect_bytes is not None:
            rows["time of a step"] = f"{self.seconds * 1e6:.0f} us estimated"
            rows["sent"] = (
                f"{as_bytes(self.interconnect_bytes)} a chip and step"
            )
        if self.not_estimated:
            rows["not estimated"] = f"{self.not_estimated} parts of the step"
        width = max(map(len, rows))
        return "\n".join(
            f"{name:{width}}  {value}" for name, value in rows.items()
        )
