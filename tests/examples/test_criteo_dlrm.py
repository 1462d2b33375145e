"""The Criteo demo: it learns, goes on where it stopped, serves and explains."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys

import criteo_dlrm
import numpy as np
import pytest
import tensorflow as tf
from criteo import evaluation
from criteo.checkpoints import Checkpoints
from criteo.click_model import ClickModel
from criteo.dlrm import dots
from criteo.log_source import LogSource
from criteo.pipeline import Pipeline
from criteo.planted import PlantedStream, PlantedTruth
from criteo.planted_source import PlantedSource
from criteo.training import Trainer, TrainingOptions

from tfembed.data.criteo import find_logs
from tfembed.errors import CheckpointError

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SAMPLE = ROOT.parent / "shared/data/criteo/criteo_sample.txt"

# Some releases log although TF_CPP_MIN_LOG_LEVEL forbids it.
TENSORFLOW_LOG = re.compile(r"WARNING: All log messages before|[IWE]\d{4} ")
STREAM = PlantedStream(PlantedTruth(largest_vocabulary=1000))


def demo(*flags):
    """A process of the demo; its output as it comes."""
    return subprocess.Popen(
        [sys.executable, "-u", EXAMPLES / "criteo_dlrm.py", *map(str, flags)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.environ.get("PYTHONPATH") or str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
    )


def finished(process):
    """The exit status, stdout, and stderr without what TensorFlow logs."""
    out, err = process.communicate(timeout=300)
    said = [
        line
        for line in err.splitlines(keepends=True)
        if not TENSORFLOW_LOG.match(line)
    ]
    return process.returncode, out, "".join(said)


def log_source(tmp_path):
    for number in range(2):
        lines = STREAM.lines(1000 * number, 1000)
        (tmp_path / f"{number}.txt").write_bytes(b"".join(lines))
    return LogSource(find_logs(str(tmp_path / "*.txt")), epochs=2)


def planted_source(tmp_path):
    return PlantedSource(STREAM)


def new_trainer(total_steps=None, *, freeze=False, batch_size=64):
    return Trainer(
        ClickModel(),
        TrainingOptions(
            batch_size,
            total_steps,
            freeze_embeddings=freeze,
            steps_per_call=4,
        ),
    )


def run(trainer, source, calls=None):
    for done, _ in enumerate(trainer.run(Pipeline(source, 64)), start=1):
        if done == calls:
            break


def rows_by_key(table):
    keys, rows = (part.numpy() for part in table.export())
    order = np.argsort(keys)
    return np.column_stack([keys[order], rows[order]])


@pytest.mark.parametrize("new_source", [planted_source, log_source])
def test_a_training_that_was_stopped_ends_as_one_that_was_not(
    tmp_path, new_source
):
    source = new_source(tmp_path)
    whole = new_trainer(22)
    run(whole, source)

    stopped = new_trainer(22)
    run(stopped, source, calls=3)
    Checkpoints(stopped, str(tmp_path / "c"), fingerprint="x").save()
    resumed = new_trainer(22)
    Checkpoints(resumed, str(tmp_path / "c"), fingerprint="x").restore()
    assert int(resumed.step) == 12
    run(resumed, source)

    assert int(resumed.step) == int(whole.step) == 22
    np.testing.assert_array_equal(resumed.position, whole.position)
    for ours, theirs in zip(
        resumed.model.network.weights, whole.model.network.weights
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(
        resumed.model.embedding.embedding_tables.values(),
        whole.model.embedding.embedding_tables.values(),
    ):
        np.testing.assert_allclose(
            rows_by_key(ours), rows_by_key(theirs), rtol=1e-4, atol=1e-5
        )


def test_logs_are_read_to_their_end_and_traced_once(tmp_path):
    trainer = new_trainer()
    run(trainer, log_source(tmp_path))
    assert int(trainer.step) == 2 * 2 * 900 // 64
    assert trainer._run.experimental_get_tracing_count() == 1


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    trainer = new_trainer(4)
    run(trainer, PlantedSource(STREAM))
    Checkpoints(trainer, str(tmp_path), fingerprint="a log").save()
    with pytest.raises(CheckpointError, match="trained on a log"):
        Checkpoints(
            new_trainer(), str(tmp_path), fingerprint="another"
        ).restore()


@pytest.mark.slow
def test_the_tables_are_what_is_learned():
    share = {}
    for freeze in (False, True):
        trainer = new_trainer(1500, freeze=freeze)
        source = PlantedSource(STREAM)
        run(trainer, source)
        share[freeze] = evaluation.evaluate(
            trainer.model, source, most_examples=20_000
        ).share_of_best
    assert share[False] > 0.8
    assert share[True] < 0.6


def test_dots_are_those_of_all_pairs():
    vectors = np.random.default_rng(0).normal(size=(4, 5, 3))
    pairs = [(i, j) for i in range(5) for j in range(i)]
    expected = [(vectors[:, i] * vectors[:, j]).sum(axis=1) for i, j in pairs]
    found = dots(tf.constant(vectors))
    np.testing.assert_allclose(found, np.stack(expected, axis=1))


@pytest.mark.slow
def test_ctrl_c_saves_and_the_next_run_goes_on(tmp_path):
    directory = tmp_path / "run"
    flags = ("--checkpoint_dir", directory, "--batch_size", 64)
    process = demo(*flags, "--examples", 100_000_000)
    line = ""
    while "examples/s" not in line:
        line = process.stdout.readline()
        assert line, process.stderr.read()
    process.send_signal(signal.SIGINT)
    code, out, err = finished(process)
    assert (code, err) == (130, "")
    assert "Interrupted; all is saved" in out

    path = tf.train.latest_checkpoint(directory)
    step = int(path.rpartition("-")[2])
    more = (step + 5) * 64
    code, out, err = finished(
        demo(*flags, "--examples", more, "--evaluation_examples", 1)
    )
    assert (code, err) == (0, "")
    assert f"Resumed from {path}: step {step:,}, example {step * 64:,}" in out
    assert "Trained on 320 examples" in out


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample is not here")
def test_the_sample_of_criteo_trains_and_serves(tmp_path):
    export_dir = tmp_path / "export"
    code, out, err = finished(
        demo("--data", SAMPLE, "--export_dir", export_dir)
    )
    assert (code, err) == (0, "")
    assert "read 20 times" in out
    assert "as it should be" in out
    assert (export_dir / "saved_model.pb").exists()


@pytest.mark.parametrize(
    "content, said",
    [
        (None, "log.txt: does not exist"),
        (b"", "log.txt: an empty file"),
        (b"".join(STREAM.lines(0, 99)) + b"1\t2", "log.txt:100: the file is c"),
    ],
)
def test_bad_data_ends_in_one_line_and_changes_nothing(
    tmp_path, capfd, content, said
):
    if content is not None:
        (tmp_path / "log.txt").write_bytes(content)
    directory = tmp_path / "run"
    flags = [f"--data={tmp_path / 'log.txt'}", f"--checkpoint_dir={directory}"]
    assert criteo_dlrm.main(flags) == 1
    err = capfd.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert not list(directory.glob("*"))


def test_skipped_lines_are_reported(tmp_path):
    lines = STREAM.lines(0, 300)
    lines[41] = b"not a line\n"
    (tmp_path / "log.txt").write_bytes(b"".join(lines))
    code, out, err = finished(
        demo("--data", tmp_path / "log.txt", "--skip_bad_lines")
    )
    assert (code, err) == (0, "")
    assert "Skipped 1 bad line" in out
    assert f"{tmp_path / 'log.txt'}:42: too few fields: 1" in out


def test_too_few_lines_for_a_batch_are_named(tmp_path, capfd):
    lines = [b"not a line\n", *STREAM.lines(0, 20)]
    (tmp_path / "log.txt").write_bytes(b"".join(lines))
    flags = ["--batch_size=64", "--epochs=1", "--skip_bad_lines"]
    data = f"--data={tmp_path / 'log.txt'}"
    assert criteo_dlrm.main([data, *flags]) == 1
    assert "one batch has, 64 (1 bad ones were" in capfd.readouterr().err


@pytest.mark.parametrize("flag", ["checkpoint_dir", "export_dir"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, capfd, flag):
    (tmp_path / "file").touch()
    assert criteo_dlrm.main([f"--{flag}={tmp_path / 'file' / 'in'}"]) == 1
    assert str(tmp_path / "file") in capfd.readouterr().err
    assert criteo_dlrm.main([f"--{flag}={tmp_path / 'file'}"]) == 1
    assert f"{tmp_path / 'file'} is a file" in capfd.readouterr().err


@pytest.mark.parametrize("changed", ["--batch_size=32", "--seed=1"])
def test_a_run_goes_on_with_the_same_batches_and_seed_only(
    tmp_path, capfd, changed
):
    log_source(tmp_path)
    flags = [
        f"--data={tmp_path / '*.txt'}",
        f"--checkpoint_dir={tmp_path / 'run'}",
        "--epochs=1",
        "--examples=320",
        "--evaluation_examples=100",
    ]
    assert criteo_dlrm.main([*flags, "--batch_size=64"]) == 0
    assert criteo_dlrm.main([*flags, "--batch_size=64", changed]) == 1
    assert "Name the same data, --batch_size" in capfd.readouterr().err


def test_an_empty_name_and_a_holdout_of_all_lines_are_refused(capfd):
    assert criteo_dlrm.main(["--data="]) == 1
    assert "--data: is empty" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        criteo_dlrm.main(["--holdout=1"])
    assert "leaves none to train on" in capfd.readouterr().err


def test_a_damaged_checkpoint_is_named(tmp_path, capfd):
    flags = [f"--checkpoint_dir={tmp_path}", "--batch_size=64"]
    trainer = new_trainer(4)
    source = PlantedSource(PlantedStream())
    run(trainer, source)
    path = Checkpoints(
        trainer, str(tmp_path), fingerprint=source.fingerprint()
    ).save()
    largest = max(tmp_path.glob("*.data-*"), key=lambda it: it.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    assert criteo_dlrm.main(flags) == 1
    assert path in capfd.readouterr().err
