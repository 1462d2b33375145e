"""`tfembed inspect` shows what files hold, and refuses others in one line."""

from __future__ import annotations

import io
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from inspection import saved_files
from tfembed.inspection import command
from tfembed.saved.saved_tables import SavedTables

ROOT = pathlib.Path(tfembed.__file__).parent.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with two checkpoints of three tables."""
    folder = tmp_path_factory.mktemp("run")
    model = tf.Module()
    model.users = saved_files.users(
        100, eviction=tfembed.policies.LeastFrequent()
    )
    model.names = saved_files.names()
    model.items = tfembed.HashTable(2, name="items")
    model.items.upsert([1, 2], [[3.0, 4], [30, 40]])
    model.kernel = tf.Variable(tf.ones([5, 2]))
    checkpoint = tf.train.Checkpoint(model=model)
    manager = tf.train.CheckpointManager(checkpoint, str(folder), 5)
    manager.save()
    model.items.upsert([2, 7], [[30.0, 41], [0, 0]])
    model.items.remove(tf.constant([1], tf.int64))
    manager.save()
    return folder


def inspect(capsys, *arguments):
    """The exit status, what was printed, and the errors."""
    status = command.main(["inspect", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_listing_names_tables_with_their_facts(capsys, run):
    status, out, err = inspect(capsys, run)

    lines = {line.split()[0]: line.split() for line in out.splitlines()}
    assert (status, err) == (0, "")
    assert lines["users"][1:7] == [
        *("100", "int64", "4", "float32", "adagrad", "accumulators")
    ]
    assert lines["names"][1:5] == ["6", "string", "2", "float32"]
    assert "users: seed 7; eviction least frequent first." in out
    assert "number 2" in out
    assert "2 variables beside, 48 B; --table takes those of rank 2:" in out
    assert out.endswith("model/kernel.\n")


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")]
)
def test_a_terminal_that_wants_no_codes_gets_none(
    monkeypatch, run, variable, value
):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = []
    for _ in range(2):
        terminal = _Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        command.main(["inspect", str(run)])
        shown.append(terminal.getvalue())
        monkeypatch.setenv(variable, value)

    assert "\x1b[1m" in shown[0]  # Bold.
    assert "\x1b" not in shown[1]
    assert "accumulators" in shown[1]


@pytest.mark.parametrize(
    ("is_terminal", "pause"), [(1, "0"), (0, "0"), (1, "-1")]
)
def test_a_terminal_is_told_that_a_long_command_goes_on(
    monkeypatch, run, is_terminal, pause
):
    stderr = _Terminal() if is_terminal else io.StringIO()
    is_told = is_terminal and pause == "0"
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TFEMBED_PROGRESS_SECONDS", pause)

    def check(self):
        give_up = time.monotonic() + 30
        while is_told and " s\n" not in stderr.getvalue():
            assert time.monotonic() < give_up
            time.sleep(0.01)

    monkeypatch.setattr(SavedTables, "check", check)
    assert command.main(["inspect", str(run), "--verify"]) == 0

    told = stderr.getvalue()
    assert bool(told) == bool(is_told)
    assert re.fullmatch(r"(tfembed: [\d.]+ k?B read in 0 s\n)*", told)


def test_a_table_that_is_named_is_described(capsys, run):
    status, out, _ = inspect(capsys, run, "--table", "users")

    assert status == 0
    assert "slot accumulators  4 numbers, from 0.1" in out
    assert "counters           writes" in out


def test_keys_are_shown_with_rows_and_slots(capsys, run):
    status, out, _ = inspect(
        capsys, run, "--table", "items", "--key", "2", "--key", "7"
    )

    assert status == 0
    assert "items: key 2\n  row    30  41\n  norm   50.8" in out
    assert "items: key 7\n  row    0  0\n" in out


def test_a_key_of_text_is_found_in_the_table_of_texts(capsys, run):
    status, out, _ = inspect(capsys, run, "--key", "alice")

    assert (status, out.splitlines()[0]) == (0, "names: key 'alice'")


def test_each_key_is_searched_in_the_tables_that_take_it(capsys, run):
    status, out, _ = inspect(
        capsys, run, *("--key", "alice", "--key", "7", "--key", "-5")
    )

    assert status == 1
    assert "items: key 7\n" in out and "names: key 'alice'\n" in out
    assert "names: there is no key '7'" not in out
    assert out.splitlines()[-1].endswith(": there is no key '-5'")
    assert all(
        name in out.splitlines()[-1] for name in ("users", "names", "items")
    )


def test_a_key_that_is_not_there_ends_with_status_1(capsys, run):
    status, out, _ = inspect(capsys, run, "--table", "users", "--key", "-5")

    assert (status, out) == (1, "users: there is no key '-5'\n")


def test_the_longest_rows_come_first(capsys, run):
    _, out, _ = inspect(capsys, run, "--table", "items", "--top", "norm")

    assert [line.split()[:2] for line in out.splitlines()[2:]] == [
        ["2", "50.8"],
        ["7", "0"],
    ]


def test_a_long_key_is_cut_off_where_many_are_listed(capsys, tmp_path):
    table = tfembed.HashTable(1, name="t", key_dtype=tf.string)
    table.upsert(tf.constant(["x" * 300, "y"]), [[2.0], [1.0]])
    prefix = saved_files.save(tmp_path / "ckpt", t=table)

    _, out, _ = inspect(capsys, prefix, "--top", "norm")

    assert out.splitlines()[0] == "t, longest first"
    assert max(map(len, out.splitlines())) < 80
    assert f"'{'x' * 56}... " in out


def test_rows_by_frequency_need_counters_of_writes(capsys, run):
    status, out, _ = inspect(
        capsys, run, "--table", "users", "--top", "frequent", "--count", "3"
    )
    assert (status, len(out.splitlines())) == (0, 5)

    status, _, err = inspect(capsys, run, "--table", "users", "--top", "recent")
    assert status == 2
    assert "its eviction policy notes writes" in err


def test_a_difference_names_keys_gone_and_come_and_rows_moved(capsys, run):
    status, out, _ = inspect(
        capsys,
        *("--diff", run / "ckpt-1", run / "ckpt-2"),
        *("--table", "items"),
    )

    assert status == 0
    for line in (
        "  gone         1: 1\n",
        "  come         1: 7\n",
        "  kept         1\n",
        "  unchanged    0\n",
    ):
        assert line in out
    assert out.splitlines()[-1].split() == ["2", "1"]


def test_verify_reads_all_and_says_so(capsys, run):
    status, out, _ = inspect(capsys, run, "--verify")

    assert status == 0
    assert out.endswith("all checksums are right.\n")


def test_verify_of_files_without_checksums_says_that_there_are_none(
    capsys, tmp_path
):
    np.arange(4).tofile(tmp_path / "t-keys")
    np.arange(8, dtype=np.float32).tofile(tmp_path / "t-values")

    status, out, _ = inspect(capsys, tmp_path / "t", "--verify")

    assert status == 0
    assert "the files have no checksums" in out


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["nowhere"], "There is no file or checkpoint"),
        (["{run}", "--table", "nobody"], "has no table 'nobody'"),
        (["{run}", "--table", "users", "--key", "alice"], "are int64; got"),
        (["{run}", "--table", "users", "--key", str(1 << 70)], "are int64"),
        (["{run}", "--to", "x.csv"], "--to writes one table"),
        (["{run}", "--table", "items", "--to", "x.xls"], "ends in"),
        (["{run}/checkpoint"], "is not a checkpoint"),
        (["/dev/null"], "is not a file"),
        (["gs://bucket/ckpt"], "is a remote path"),
        ([], "Give the path of a file"),
        (["{run}", "--diff", "a", "b"], "Give the path of a file"),
        (["{run}", "--html", "{run}"], "is a folder"),
        (["{run}", "--dtype", "float99"], "A dtype must be one of"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, run, arguments, text):
    status, out, err = inspect(
        capsys, *(argument.format(run=run) for argument in arguments)
    )

    assert (status, out) == (2, "")
    assert text in err
    assert (err.count("\n"), err[:9]) == (1, "tfembed: ")


@pytest.mark.parametrize("count", ["0", "-1", "x", "1.5"])
def test_a_count_is_an_integer_from_1_on(capsys, run, count):
    with pytest.raises(SystemExit) as ended:
        command.main(["inspect", str(run), "--top", "norm", f"--count={count}"])

    assert ended.value.code == 2
    assert "must be an integer of at least 1" in capsys.readouterr().err


def test_names_of_a_file_give_a_terminal_no_commands(capsys, tmp_path):
    table = tfembed.HashTable(1, name="t", key_dtype=tf.string)
    table.upsert(tf.constant(["\033[2Jx\n"]), [[1.0]])
    prefix = saved_files.save(tmp_path / "ckpt", t=table)

    _, out, _ = inspect(capsys, prefix, "--top", "norm")

    assert "\033" not in out
    assert "\\x1b[2Jx" in out


def test_tables_on_a_terminal_are_drawn_by_rich_where_it_is_there(
    capsys, run, monkeypatch
):
    _, plain, _ = inspect(capsys, run, "--table", "items", "--top", "norm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    _, drawn, _ = inspect(capsys, run, "--table", "items", "--top", "norm")
    monkeypatch.setitem(sys.modules, "rich.table", None)
    _, without, _ = inspect(capsys, run, "--table", "items", "--top", "norm")

    assert without == plain
    assert drawn.split() == plain.split()


@pytest.mark.parametrize(
    "program",
    [
        ["-m", "tfembed"],
        ["-c", "import sys, tfembed_command; sys.exit(tfembed_command.main())"],
    ],
    ids=["module", "console"],
)
def test_the_command_starts_without_tensorflow(run, program):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", *program, "inspect", str(run)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )

    assert "users" in ran.stdout
    assert "numpy" in ran.stderr
    assert "tensorflow" not in ran.stderr


def shell(line, path):
    """The exit status and stderr of the program under a shell's redirections."""
    ran = subprocess.run(
        ["bash", "-c", f'"$0" -m tfembed {line}', sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
    )
    return ran.returncode, ran.stderr


@pytest.mark.parametrize(
    "line, text",
    [
        ('inspect "$1" > /dev/full', "No space left"),
        ("--help > /dev/full", "No space left"),
        ('inspect "$1" >&-', "standard output is closed"),
        ('inspect "$1" --verify >&-', "standard output is closed"),
    ],
)
def test_an_output_that_takes_nothing_is_one_line(run, line, text):
    status, err = shell(line, run)

    assert status == 2
    assert text in err
    assert (err.count("\n"), err[:9]) == (1, "tfembed: ")


@pytest.mark.parametrize(
    "line, status",
    [
        ('inspect "$1" 2>&-', 0),
        ("inspect nowhere 2>&-", 2),
        ("inspect nowhere 2>/dev/full", 2),
        ('inspect "$1" | head -c 1 > /dev/null; exit ${PIPESTATUS[0]}', 0),
    ],
)
def test_a_closed_stderr_or_pipe_is_no_fault(run, line, status):
    assert shell(line, run)[0] == status


def test_a_fault_of_the_program_is_one_line_with_its_place(
    capsys, run, monkeypatch
):
    monkeypatch.setattr(SavedTables, "check", lambda self: 1 / 0)

    status, _, err = inspect(capsys, run, "--verify")
    assert (status, err.count("\n")) == (3, 1)
    assert "ZeroDivisionError: division by zero (test_command.py:" in err

    _, _, err = inspect(capsys, run, "--verify", "--traceback")
    assert "Traceback (most recent call last)" in err


@pytest.mark.parametrize("module", [True, False])
def test_the_version_is_that_of_the_package(module):
    program = "import tfembed_command as c; c.main()"
    ran = subprocess.run(
        [
            sys.executable,
            *(["-m", "tfembed"] if module else ["-c", program]),
            "--version",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout.startswith(f"tfembed {tfembed.__version__}, for Tensor")
