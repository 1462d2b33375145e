"""Whether HTML can push a page wider than its window."""

from __future__ import annotations

import html.parser
import re

VOID = {"br", "hr", "img", "input", "link", "meta"}


class _Frames(html.parser.HTMLParser):
    """Collects wide elements, each with whether a frame around it scrolls."""

    def __init__(self, scrolling: set[str]):
        super().__init__()
        self._scrolling, self._open = scrolling, []
        self.wide: list[tuple[str, bool]] = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        scrolls = "overflow-x:auto" in (given.get("style") or "") or bool(
            self._scrolling & set((given.get("class") or "").split())
        )
        if tag == "table" or (
            tag == "svg" and re.fullmatch(r"\d+", given.get("width") or "")
        ):
            self.wide.append((tag, any(self._open)))
        if tag not in VOID:
            self._open.append(scrolls)

    def handle_endtag(self, tag):
        if tag not in VOID:
            self._open.pop()


def wide_elements(source: str, *scrolling: str) -> list[tuple[str, bool]]:
    """Returns the tables and the pictures of fixed width of an HTML text.

    Args:
      source: the text.
      *scrolling: the classes whose style is `overflow-x:auto`.

    Returns:
      (tag, whether an element around it scrolls) of each, in their order.
    """
    found = _Frames({*scrolling})
    found.feed(source)
    found.close()
    return found.wide
