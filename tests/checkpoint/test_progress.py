"""Long saves and restores tell in the log how far they are."""

from __future__ import annotations

import re

import pytest

import fresh_process

PROGRAM = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
import tensorflow as tf
from tfembed import dynamic_embedding as de

table = de.Variable(name="users", dim=64)
keys = tf.range(150_000, dtype=tf.int64)  # Three chunks.
table.upsert(keys, tf.ones([150_000, 64]))
for pause in ("0", "-1"):
    os.environ["TFEMBED_PROGRESS_SECONDS"] = pause
    print(f"pause {pause}", file=sys.stderr, flush=True)
    checkpoint = tf.train.Checkpoint(table=table)
    checkpoint.restore(checkpoint.save(sys.argv[1] + "/ckpt"))
    table.save_to_file_system(sys.argv[1], buffer_size=60_000)
    table.load_from_file_system(sys.argv[1], buffer_size=60_000)
"""


@pytest.mark.slow
def test_what_takes_long_says_how_far_it_is(tmp_path):
    lines = fresh_process.run(PROGRAM, tmp_path, new_interpreter=True).stderr
    always, never = re.split(r"pause -?\d*\n", lines)[1:]

    for begin in (
        "Saving table 'users'",
        "Checking saved table 'users'",
        "Restoring table 'users'",
        "Saving table 'users' to row files",
    ):
        on_the_way = rf"{begin}: \d+ of 150000 rows \(\d+ %\), some \d+ s left"
        assert re.search(on_the_way, always), begin
        assert re.search(rf"{begin}: 150000 of 150000 rows in [\d.]+ s", always)
    for begin in ("Checking '.*-values'", "Loading '.*-values' and its keys"):
        assert re.search(rf"{begin}: \d+ of \d+ bytes \(\d+ %\)", always), begin
        assert re.search(rf"{begin}: (\d+) of \1 bytes in", always), begin
    assert not re.search(r"of \d+ (rows|bytes)", never)
