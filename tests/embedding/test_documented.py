"""The programs of the pages on TPUEmbedding run, one after the other."""

from __future__ import annotations

import re

import numpy as np
import pytest

import documents

PAGE = "tpu_embedding.md"


def run(page, names):
    text = (documents.DOCS / page).read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, page, "exec"), names)


@pytest.mark.slow
def test_the_programs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}

    run(PAGE, names)

    # What was trained is served.
    table = names["embedding"].embedding_tables[names["users"]]
    rows, exist = table.lookup([10**12])
    assert exist.numpy().all()
    np.testing.assert_array_equal(names["rows"]["user"], rows)

    assert float(names["step"](names["batch"], names["labels"])) < 1.0
