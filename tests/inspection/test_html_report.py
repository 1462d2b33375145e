"""The report shows what the file holds, and loads nothing."""

from __future__ import annotations

import html.parser
import os
import re

import numpy as np
import pytest
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from inspection import frames, saved_files
from tfembed.inspection import command, html_report
from tfembed.inspection.row_survey import Histogram, survey
from tfembed.printing import drawings
from tfembed.saved.saved_table import SavedTable
from tfembed.saved.saved_tables import open_saved

VOID = {"meta"}


class Page(html.parser.HTMLParser):
    """Checks that tags close in order; collects texts and addresses."""

    def __init__(self, path):
        super().__init__()
        self.open, self.texts, self.addresses = [], [], []
        self.feed(path.read_text())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [
            value for name, value in attributes if name in ("href", "src")
        ]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with three checkpoints of a growing table and others."""
    folder = tmp_path_factory.mktemp("run")
    model = tf.Module()
    model.users = saved_files.users(
        100, eviction=tfembed.policies.LeastFrequent()
    )
    model.names = saved_files.names()
    model.recent = tfembed.HashTable(
        2, name="recent", eviction=tfembed.policies.LeastRecent()
    )
    model.empty = tfembed.HashTable(2, name="empty")
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), str(folder), 5
    )
    for i in range(3):
        model.recent.upsert(np.arange(10 * i + 1), np.ones([10 * i + 1, 2]))
        manager.save()
    return folder


def test_a_report_has_a_picture_of_each_kind_and_no_address(run, tmp_path):
    html_report.write(open_saved(run), tmp_path / "r.html")

    page = Page(tmp_path / "r.html")
    text = " ".join(page.texts)
    for title in (
        *("Bytes by kind", "Rows over time", "Norms of rows"),
        "Worth: how often rows were written",
        *("Hottest keys: written most often", "Hottest keys: touched last"),
    ):
        assert title in text
    assert "shard" not in text  # A checkpoint says nothing of shards.
    assert "3 checkpoints of this folder." in text
    assert "ckpt-3: 21 rows" in text
    assert all(address.startswith("#t") for address in page.addresses)
    source = (tmp_path / "r.html").read_text()
    assert not re.search(r"https?:|<script|url\(|@import", source)
    # Tables by name, and keys by the time since they were touched.
    assert frames.wide_elements(source, "scroll") == [("table", True)] * 2
    for wraps in ("h1", "h2", "p", r"\.legend span", "td:first-child"):
        assert re.search(rf"(?m)^{wraps}{{.*overflow-wrap:anywhere", source)


def test_what_a_file_says_is_no_markup_of_a_report(tmp_path):
    table = tfembed.HashTable(1, name="t", key_dtype=tf.string)
    table.upsert(tf.constant(["<script>alert(1)</script>"]), [[1.0]])
    prefix = saved_files.save(tmp_path / "<b>", t=table)

    html_report.write(open_saved(prefix), tmp_path / "r.html")

    source = (tmp_path / "r.html").read_text()
    assert "<script" not in source
    assert "<b>/" not in source and "/<b>" not in source
    assert "&lt;script&gt;alert(1)" in source


def test_a_report_has_no_control_characters(tmp_path):
    table = tfembed.HashTable(1, name="t", key_dtype=tf.string)
    table.upsert(tf.constant([b"a\x1b[2J\0b\n\x9b"]), [[1.0]])
    folder = tmp_path / "x\x1b[2Jy"
    folder.mkdir()
    prefix = saved_files.save(folder / "ckpt", t=table)

    html_report.write(open_saved(prefix), tmp_path / "r.html")

    source = (tmp_path / "r.html").read_text()
    assert all(c.isprintable() or c == "\n" for c in source)
    assert r"a\x1b[2J\x00b\n" in source and r"x\x1b[2Jy" in source


def test_the_shards_of_row_files_are_those_that_the_files_have(tmp_path):
    v = de.Variable(dim=2, name="v", devices=["/CPU:0"] * 3)
    v.upsert(np.arange(9), np.ones([9, 2]))
    v.save_to_file_system(tmp_path)

    html_report.write(open_saved(tmp_path), tmp_path / "r.html")

    text = " ".join(Page(tmp_path / "r.html").texts)
    assert "Balance of shards" in text
    assert "shard 2" in text and "shard 3" not in text


@pytest.mark.parametrize("top", [1, 2, 3, 7, 10, 25, 1e6])
def test_axes_of_counts_have_whole_numbers(top):
    steps = drawings.nice_steps(top, least=1)

    assert all(step == int(step) for step in steps)
    assert steps[-2] < top <= steps[-1]


@pytest.mark.parametrize("time", [0, 253402300800, 1 << 55])
def test_a_file_of_any_time_has_a_report(run, tmp_path, time):
    for path in run.glob("ckpt-1.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
        os.utime(tmp_path / path.name, (time, time))

    html_report.write(open_saved(tmp_path / "ckpt-1"), tmp_path / "r.html")
    assert command.main(["inspect", str(tmp_path / "ckpt-1")]) == 0


def test_a_report_for_no_folder_is_refused_before_rows_are_read(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(SavedTable, "chunks", None)

    with pytest.raises(tfembed.errors.ArgumentError, match="no folder '.*/no'"):
        html_report.write(open_saved(run), tmp_path / "no" / "r.html")


def test_a_report_of_a_damaged_file_is_not_written(run, tmp_path):
    for path in run.glob("ckpt-3*"):
        content = bytearray(path.read_bytes())
        if "data" in path.name:
            content[len(content) // 2] ^= 1
        (tmp_path / path.name).write_bytes(content)

    with pytest.raises(tfembed.errors.CheckpointError, match="damaged"):
        html_report.write(open_saved(tmp_path / "ckpt-3"), tmp_path / "r.html")
    assert not list(tmp_path.glob("*r.html*"))


def test_a_histogram_counts_as_numpy_does_whatever_the_order():
    rng = np.random.default_rng(0)
    numbers = np.concatenate([rng.gamma(2, 3, 5000), [0.0, 1e-30, 700.0]])
    found = Histogram()
    for part in np.array_split(numbers, 17):
        found.add(part)
    found.add(np.asarray([np.nan, np.inf]))

    edges = np.linspace(0, 1024, 33)
    expected, _ = np.histogram(numbers, edges)
    np.testing.assert_array_equal(found.binned(edges), expected)
    assert (len(found), found.not_finite) == (5003, 2)
    assert found.total == pytest.approx(numbers.sum())
    for share in (0.01, 0.5, 0.99):
        exact = np.quantile(numbers, share, method="inverted_cdf")
        assert found.quantile(share) == pytest.approx(exact, rel=1e-3)


def test_a_row_far_from_the_others_hides_neither_their_norms_nor_itself(
    tmp_path,
):
    table = tfembed.HashTable(4, name="t", seed=1)
    rows = np.full([1000, 4], 0.05, np.float32)
    rows[0] = 500
    table.upsert(np.arange(1000), rows)
    html_report.write(
        open_saved(saved_files.save(tmp_path / "ckpt", t=table)),
        tmp_path / "r.html",
    )

    text = " ".join(Page(tmp_path / "r.html").texts)
    assert "0.1 median norm" in text
    assert (
        "1 % are up to 0.1, half up to 0.1, 99 % up to 0.1; the largest is "
        "1,000. 1 longer row not shown." in text
    )
    assert "norm 0.1 to 0.106: 999 rows" in text
    assert "1 table " in text


def test_a_survey_counts_rows_never_trained_and_shards(tmp_path):
    table = saved_files.users(64, eviction=tfembed.policies.LeastFrequent())
    trained = table.export()[0].numpy()[:10]
    table.apply_gradients(tf.constant(trained), tf.ones([10, 4]))
    saved = open_saved(saved_files.save(tmp_path / "ckpt", t=table))["t"]

    found = survey(saved, saved.num_rows)

    assert found.untrained == 54
    assert found.counters == (0, 54, 10)  # Below 1, below 2, below 4.
    assert found.shards == ()


@pytest.mark.parametrize(
    "top, steps",
    [
        (7, [0, 2, 4, 6, 8]),
        (0.03, [0, 0.01, 0.02, 0.03]),
        (1e9, [0, 2.5e8, 5e8, 7.5e8, 1e9]),
        (0, [0, 1]),
        (float("inf"), [0, 1]),
    ],
)
def test_steps_of_an_axis_are_round_and_reach_the_top(top, steps):
    assert drawings.nice_steps(top) == pytest.approx(steps)
