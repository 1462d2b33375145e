"""The programs of docs/tpu_embedding.md run, one after the other."""

from __future__ import annotations

import re

import numpy as np
import pytest

import documents

PAGE = "tpu_embedding.md"


@pytest.mark.slow
def test_the_programs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (documents.DOCS / PAGE).read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, PAGE, "exec"), names)
    # What was trained is served.
    table = names["embedding"].embedding_tables[names["users"]]
    rows, exist = table.lookup([10**12])
    assert exist.numpy().all()
    np.testing.assert_array_equal(names["rows"]["user"], rows)
    assert float(names["step"](names["batch"], names["labels"])) < 1.0
