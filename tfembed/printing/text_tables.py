"""Tables of text, for terminals and for notebooks."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence

__all__ = ["TextTable", "scrolled"]


def scrolled(content: str) -> str:
    """Returns HTML in a frame that scrolls sideways on a narrower page."""
    return f'<div style="overflow-x:auto">{content}</div>'


@dataclasses.dataclass(frozen=True)
class TextTable:
    """Lines of cells under a header.

    A column without content is left out.

    Attributes:
      title: the title over the table.
      header: the name of each column.
      lines: a text for each column; the first text names the line.
    """

    title: str
    header: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]

    def filled(self) -> list[tuple[str, ...]]:
        """Returns header and lines, with only the columns that have content."""
        columns = [
            column
            for column in zip(self.header, *self.lines, strict=True)
            if any(column[1:])
        ]
        return list(zip(*columns, strict=True))

    def __str__(self) -> str:
        """Returns the table for a fixed-width font, numbers aligned right."""
        lines = self.filled()
        if not lines:
            return self.title
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [self.title]
        for line in lines:
            first, *others = zip(line, widths, strict=True)
            cells = [f"{first[0]:<{first[1]}}"]
            cells += [f"{cell:>{width}}" for cell, width in others]
            text.append("  ".join(cells).rstrip())
        return "\n".join(text)

    def to_html(self) -> str:
        """Returns the table as HTML, aligned, in a frame that scrolls it."""
        lines = self.filled()
        if not lines:
            return ""

        def row(cells: Sequence[str], tag: str) -> str:
            # Only a header breaks: its words are wider than most numbers.
            breaks = "" if tag == "th" else "white-space:nowrap;"
            return "".join(
                f'<{tag} style="padding:0.1em 0.5em;{breaks}text-align:'
                f'{"right" if i else "left"}">'
                f"{html.escape(cell)}</{tag}>"
                for i, cell in enumerate(cells)
            )

        head, *body = lines
        rows = "".join(f"<tr>{row(line, 'td')}</tr>" for line in body)
        table = (
            f"<table><thead><tr>{row(head, 'th')}</tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )
        return f"<p><b>{html.escape(self.title)}</b></p>{scrolled(table)}"
