"""Which slots of two update rules mean the same, so that one may begin as other."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["MEANINGS", "same_slots"]

# By rule and slot. A slot that is not here means something of its rule's own.
MEANINGS: Mapping[tuple[str, str], str] = {
    # a += g^2
    ("adagrad", "accumulators"): "sum of squares",
    ("ftrl", "accumulators"): "sum of squares",
    ("proximal_adagrad", "accumulators"): "sum of squares",
    # v = b v + (1 - b) g^2, or Yogi's estimate of the same
    ("adadelta", "accumulators"): "mean of squares",
    ("adam", "velocities"): "mean of squares",
    ("centered_rms_prop", "ms"): "mean of squares",
    ("rms_prop", "ms"): "mean of squares",
    ("yogi", "v"): "mean of squares",
    # m = b m + (1 - b) g
    ("adam", "momenta"): "mean of gradients",
    ("centered_rms_prop", "mg"): "mean of gradients",
    ("lion", "momenta"): "mean of gradients",
    ("yogi", "m"): "mean of gradients",
    # b u + lr g / sqrt(mean of squares)
    ("centered_rms_prop", "mom"): "momentum of scaled steps",
    ("rms_prop", "mom"): "momentum of scaled steps",
}


def same_slots(
    rule: str,
    slot_widths: Mapping[str, int],
    other: str | None,
    other_widths: Mapping[str, int],
) -> dict[str, str]:
    """The slots of a rule that another rule's slots can begin as.

    Args:
      rule: the rule's name in the core, "adagrad" say.
      slot_widths: of its slots, 1 for one number a row.
      other: the name of the rule whose slots there are; None: not known.
      other_widths: of these.

    Returns:
      By slot of `rule` the slot of `other`. A slot of one number a row goes with
      such a slot only.
    """
    if other is None:
        return {}
    found = {}
    for slot, width in slot_widths.items():
        meaning = MEANINGS.get((rule, slot))
        for given, given_width in other_widths.items():
            is_same = (
                slot == given
                if rule == other
                else meaning is not None
                and MEANINGS.get((other, given)) == meaning
            )
            if is_same and (width == 1) == (given_width == 1):
                found[slot] = given
    return found
