"""docs/optimizers.md says what is there, and its programs run."""

from __future__ import annotations

import re

import tensorflow as tf

import documents
import tfembed
from tfembed import optimizers

PAGE = "optimizers.md"
NOT_RULES = {"Optimizer", "from_tensorflow"}


def rows() -> dict[str, list[str]]:
    """The table of rules, by the name of the class."""
    text = (documents.DOCS / PAGE).read_text()
    section = text.partition("## The rules")[2].partition("\n## ")[0]
    lines = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in section.splitlines()
        if line.startswith("| `") and "tfembed" not in line
    ]
    return {cells[0].strip("`"): cells for cells in lines}


def test_all_rules_are_listed_and_no_other():
    assert set(rows()) == set(optimizers.__all__) - NOT_RULES


def test_slots_and_bytes_are_those_of_the_rules():
    for name, cells in rows().items():
        if name == "CustomOptimizer":
            continue
        rule = getattr(optimizers, name)()
        named = re.findall(r"(\w+) \(([\d.e-]+)\)", cells[2])
        assert {slot: float(x) for slot, x in named} == {
            slot: float(x) for slot, x in rule.slot_initial_values.items()
        }
        floats = [rule.slot_shape(s, (1, 2))[1] for s in rule.slot_names]
        expected = "4" if floats == [1] else f"{4 * len(floats)} d"
        assert cells[3] == expected.replace("0 d", "0"), name


def test_the_programs_run():
    text = (documents.DOCS / PAGE).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(
            compile(block, PAGE, "exec"),
            names := {"tf": tf, "tfembed": tfembed},
        )
    table = tfembed.TableConfig(
        9, 64, optimizer=names["optimizer"], combiner=names["combiner"]
    )
    embedding = tfembed.TPUEmbedding(tfembed.FeatureConfig(table))
    embedding.enqueue(tf.ragged.constant([[1, 2], [3]]))
    activations = embedding.dequeue()
    embedding.apply_gradients(tf.ones_like(activations))
    assert activations.shape == [2, 64]
