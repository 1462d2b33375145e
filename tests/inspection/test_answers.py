"""`--json` prints the keys that docs/formats/answers.md lists, and no others.

Kind: an answer that only a person can read. Looked at: all commands and options that
print; the export's report is in tests/export.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from documents import DOCS
from tfembed.inspection import command
from tfembed.inspection.answers import as_json

PAGE = (DOCS / "formats" / "answers.md").read_text()

MAYBE_TEXT, NUMBER = (str, None), (int, float, str)
TABLE = {
    "name": str,
    "path": str,
    "rows": int,
    "key_dtype": str,
    "has_vocabulary": bool,
    "width": int,
    "dtype": str,
    "rule": MAYBE_TEXT,
    "slots": [{"name": str, "width": int, "initial_value": (float, None)}],
    "counters": str,
    "seed": (int, None),
    "policies": {str: str},
    "waiting": int,
    "bytes": {str: int},
    "shards": [int],
}
SIDE = {"rows": int, "width": int, "dtype": str}
SCHEMA = {
    "file": {
        "kind": str,
        "step": (int, None),
        "number": (int, None),
        "modified": float,
        "tables": [TABLE],
        "shared_names": [str],
        "variables": [{"name": str, "shape": [int], "bytes": int}],
    },
    "table": TABLE,
    "verified": {"bytes": int, "has_checksums": bool},
    "keys": {
        "found": [
            {
                "table": str,
                "key": (int, str),
                "row": [NUMBER],
                "slots": {str: [NUMBER]},
                "norm": (float, str, None),
                "noted": (int, None),
                "counters": str,
            }
        ],
        "missing": [{"key": str, "tables": [str]}],
    },
    "top": [
        {
            "table": str,
            "order": str,
            "counters": str,
            "rows": [
                {"key": (int, str), "score": (float, str), "row": [NUMBER]}
            ],
        }
    ],
    "written": {"path": str, "table": str, "rows": int, "of": int},
    "html": {"path": str},
    "difference": {
        "before": str,
        "after": str,
        "only_before": [str],
        "only_after": [str],
        "tables": [
            {
                "name": str,
                "before": SIDE,
                "after": SIDE,
                "gone": int,
                "come": int,
                "kept": int,
                "unchanged": (int, None),
                "some_gone": [(int, str)],
                "some_come": [(int, str)],
                "quantiles": ({str: float}, None),
                "most_moved": [{"key": (int, str), "distance": (float, str)}],
            }
        ],
    },
}


def fits(value, schema):
    """Says whether a value has the form of a schema, with all keys and no others."""
    if isinstance(schema, tuple):
        return any(fits(value, one) for one in schema)
    if isinstance(schema, list):
        return isinstance(value, list) and all(
            fits(v, schema[0]) for v in value
        )
    if isinstance(schema, dict) and str in schema:
        return isinstance(value, dict) and all(
            fits(one, schema[str]) for one in value.values()
        )
    if isinstance(schema, dict):
        return (
            isinstance(value, dict)
            and set(value) == set(schema)
            and all(fits(value[key], one) for key, one in schema.items())
        )
    return value is None if schema is None else type(value) is schema


def names(schema):
    """Yields the keys of a schema, at all depths."""
    parts = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict):
        yield from (key for key in schema if key is not str)
    for part in parts:
        if isinstance(part, dict | list | tuple):
            yield from names(part)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with two checkpoints of two tables."""
    folder = tmp_path_factory.mktemp("run")
    users = tfembed.HashTable(
        2, name="users", seed=1, eviction=tfembed.policies.LeastFrequent()
    )
    users.attach(tfembed.Adagrad(0.1))
    names = tfembed.HashTable(2, name="names", key_dtype="string", seed=2)
    names.upsert(["ann", b"\xff"], [[3.0, 4.0], [np.nan, np.inf]])
    users.upsert([1, 2**62], [[1.0, 0], [0, 2]])
    checkpoint = tf.train.Checkpoint(users=users, names=names)
    manager = tf.train.CheckpointManager(checkpoint, str(folder), 5)
    manager.save()
    users.upsert([1, 7], [[1.0, 1], [0, 0]])
    names.remove(tf.constant(["ann"]))
    manager.save()
    return folder


def asked(capsys, *arguments):
    """The exit status, and the object that was printed."""
    status = command.main(["inspect", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    return status, json.loads(out)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ([], ["file"]),
        (["--table", "users"], ["table"]),
        (["--verify", "--top", "norm"], ["verified", "top"]),
        (["--top", "frequent", "--key", "7"], ["keys", "top"]),
        (["--table", "users", "--to", "$.npz"], ["written"]),
        (["--html", "$.html"], ["html"]),
    ],
)
def test_an_answer_has_the_keys_of_the_schema(
    capsys, run, tmp_path, options, parts
):
    options = [text.replace("$", str(tmp_path / "new")) for text in options]
    status, answer = asked(capsys, run, *options)
    assert status == 0
    assert answer.pop("path") == f"{run}/ckpt-2"
    assert list(answer) == parts
    assert fits(answer, {part: SCHEMA[part] for part in parts})


def test_rows_come_with_their_numbers_whatever_they_are(capsys, run):
    status, answer = asked(
        capsys,
        f"{run}/ckpt-1",
        "--key",
        2**62,
        "--key",
        b"\xff".decode(errors="surrogateescape"),
        "--key",
        "5",
    )
    assert status == 1  # As the text's.
    text, number = answer["keys"]["found"]
    assert (number["key"], number["row"]) == (2**62, [0, 2])
    assert number["slots"]["accumulators"] == pytest.approx([0.1, 0.1])
    assert text["key"] == "\udcff"
    assert text["row"] == ["NaN", "Infinity"]
    assert answer["keys"]["missing"] == [
        {"key": "5", "tables": ["names", "users"]}
    ]


def test_a_difference_names_keys_and_distances(capsys, run):
    status, answer = asked(capsys, "--diff", f"{run}/ckpt-1", f"{run}/ckpt-2")
    assert status == 0
    assert fits(answer, {"difference": SCHEMA["difference"]})
    names, users = answer["difference"]["tables"]
    assert names["some_gone"] == ["ann"]
    assert (users["come"], users["some_come"]) == (1, [7])
    assert users["most_moved"] == [{"key": 1, "distance": 1.0}]
    assert list(users["quantiles"]) == ["median", "90 %", "99 %"]


def test_an_error_is_a_line_on_stderr_and_no_json(capsys, run):
    status = command.main(["inspect", str(run), "--table", "actors", "--json"])
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_the_page_lists_all_keys():
    listed = set(re.findall(r"`(\w+)`", PAGE))
    assert set(names(SCHEMA)) - listed == set()


def test_json_is_ascii_without_numbers_that_json_lacks():
    answer = {
        "a": [np.float32("nan"), -np.inf, np.array([1.5])],
        "b": b"\xc3\xa9",
    }
    assert json.loads(as_json(answer)) == {
        "a": ["NaN", "-Infinity", [1.5]],
        "b": "é",
    }
    assert as_json(answer).isascii()
