"""The programs of the page on small reads and warm starts run."""

from __future__ import annotations

import re

import documents


def test_the_programs_run():
    text = (documents.DOCS / "tables_by_hand.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "tables_by_hand.md", "exec"), names)
    # Of the ids in the batch none was seen twice.
    assert len(names["embedding"].embedding_tables["users"]) == 0
