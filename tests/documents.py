"""The programs in the project's documents."""

from __future__ import annotations

import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"


def program(page: str, heading: str) -> str:
    """The Python blocks of a page's section, one after the other."""
    text = (DOCS / page).read_text()
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
