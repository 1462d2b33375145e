"""Formats numbers for people to read."""

from __future__ import annotations

__all__ = ["as_bytes", "as_count", "as_number", "as_share", "counted"]


def as_count(number: int | None) -> str:
    """Formats as `1,204`; "" for None."""
    return "" if number is None else f"{number:,}"


def as_number(number: float | None) -> str:
    """Formats with three digits, whole from 1,000 on; "" for None."""
    if number is None:
        return ""
    return f"{number:,.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.3g}"


def as_share(share: float | None) -> str:
    """Formats as `12.3 %`; "" for None."""
    return "" if share is None else f"{100 * share:.1f} %"


def as_bytes(count: float | None) -> str:
    """Formats as `12.3 MB`; "" for None."""
    if count is None:
        return ""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def counted(number: int, noun: str) -> str:
    """Puts a number before a noun: `1 table`, `2 tables`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
