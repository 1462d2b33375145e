"""`tfembed launch`: programs, here without TensorFlow, as tasks of a cluster."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest

import fresh_process
from tfembed import errors
from tfembed.cluster.launcher import Launch, launch

PROGRAM = "import sys, tfembed_command as c; sys.exit(c.main())"


@pytest.fixture(name="program")
def make_program(tmp_path):
    """A function that writes a program, which knows `task`; returns its path."""

    def write(text):
        path = tmp_path / "program.py"
        path.write_text(
            "import json, os, signal, sys\n"
            'config = json.loads(os.environ["TF_CONFIG"])\n'
            'task = "{type} {index}".format(**config["task"])\n'
            + textwrap.dedent(text)
        )
        return str(path)

    return write


def lines(capfd):
    return sorted(capfd.readouterr().out.splitlines())


def test_each_task_learns_its_place_and_servers_end_with_the_chief(
    program, capfd
):
    path = program("""
        addresses = sum(config["cluster"].values(), [])
        sizes = {kind: len(of) for kind, of in config["cluster"].items()}
        print(task, sizes, len(set(addresses)), sys.argv[1:], flush=True)
        if task.startswith("ps"):
            signal.pause()
    """)

    status = launch(
        Launch(
            (path, "--steps", "3"),
            workers=2,
            servers=1,
            grace=fresh_process.LIMIT_SECS,
        )
    )

    assert status == 0
    sizes = {"chief": 1, "worker": 2, "ps": 1}
    # A server may be told to end before it has said anything.
    said = [line for line in lines(capfd) if not line.startswith("[ps")]
    assert said == [
        f"[{task}] {task} {sizes} 4 ['--steps', '3']"
        for task in ("chief 0", "worker 0", "worker 1")
    ]


def test_without_servers_all_tasks_are_workers(program, capfd):
    path = program("print(list(config['cluster']), file=sys.stderr)")

    assert launch(Launch((path,), workers=2)) == 0
    assert lines(capfd) == [f"[worker {i}] ['worker']" for i in range(2)]


def test_one_task_of_several_machines_gets_their_addresses(program, capfd):
    path = program("print(json.dumps(config))")
    hosts = ("a:1", "b:2", "c:3")

    assert launch(Launch((path,), servers=1, hosts=hosts, task=1)) == 0
    (line,) = lines(capfd)
    assert json.loads(line.removeprefix("[worker 0] ")) == {
        "cluster": {"chief": ["a:1"], "worker": ["b:2"], "ps": ["c:3"]},
        "task": {"type": "worker", "index": 0},
    }


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("sys.exit(3)", 3, "worker 1 ended with status 3"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            128 + 9,
            "worker 1 was ended by SIGKILL",
        ),
    ],
)
def test_a_task_that_dies_stops_the_others(program, capfd, end, status, words):
    path = program(f"""
        if task == "worker 1":
            {end}
        signal.pause()
    """)

    assert launch(Launch((path,), workers=2)) == status
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(("restarts", "status"), [(1, 5), (2, 0)])
def test_all_tasks_are_started_again(
    program, tmp_path, restarts, status, capfd
):
    path = program("""
        if task == "worker 1":
            runs = len([f for f in os.listdir(sys.argv[1]) if f[:3] == "run"])
            open(os.path.join(sys.argv[1], f"run {runs}"), "w").close()
            sys.exit(5 if runs < 2 else 0)
        print("started", flush=True)
    """)

    given = Launch((path, str(tmp_path)), workers=2, restarts=restarts)

    assert launch(given) == status
    assert capfd.readouterr().err.count("started again") == restarts


def _read(pipe, text=b"", times=1):
    """Reads a text some times; without, until no process has the pipe open."""
    read = b""
    while not text or read.count(text) < times:
        ready, _, _ = select.select([pipe], [], [], fresh_process.LIMIT_SECS)
        assert ready, read
        part = os.read(pipe, 1000)
        if not part:
            return read
        read += part
    return read


# Nothing is left, whatever ends the launcher. Looked at too: tasks that pay no
# attention to a signal, those of an attempt that is begun again.
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGINT, 128 + signal.SIGINT),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_no_process_outlives_the_launcher(program, tmp_path, number, status):
    path = program("""
        def told(number, frame):
            os.write(pipe, b"told %d;" % number)
            os._exit(0)

        pipe = os.open(sys.argv[1], os.O_WRONLY)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, told)
        # A launcher that is killed cannot kill what a task has started.
        if sys.argv[2] != "SIGKILL" and os.fork() == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.Signals)
        os.write(pipe, b"up;")
        while True:
            signal.pause()
    """)
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    pipe = os.open(fifo, os.O_RDWR)
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-c", PROGRAM, "launch", "--workers", "2"),
            *("--grace", str(fresh_process.LIMIT_SECS)),
            *(path, str(fifo), signal.Signals(number).name),
        ],
        stderr=subprocess.DEVNULL,
    )
    is_killed = number == signal.SIGKILL
    _read(pipe, b"up;", 2 if is_killed else 4)
    alone = os.open(fifo, os.O_RDONLY)
    os.close(pipe)

    launcher.send_signal(number)

    told = _read(alone)  # To its end: no process has it open any more.
    assert told.count(b"told %d;" % number) == (0 if is_killed else 2)
    assert launcher.wait() == status
    os.close(alone)


def test_a_task_that_does_not_end_is_killed(program, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    path = program("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if task == "worker 1":
            open(sys.argv[1]).read(1)  # Until worker 0 pays no attention.
            sys.exit(3)
        open(sys.argv[1], "w").write("1")
        while True:
            signal.pause()
    """)
    given = Launch((path, str(tmp_path / "pipe")), workers=2, grace=0.05)

    assert launch(given) == 3


def test_the_launcher_imports_no_tensorflow(program):
    path = program("")
    listed = f"""
        import sys, tfembed_command
        sys.argv[1:] = ["launch", {path!r}]
        status = tfembed_command.main()
        print(status, "tensorflow" in sys.modules)
    """

    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(listed)],
        capture_output=True,
        text=True,
    )

    assert out.stdout == "0 False\n", out.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "`workers` must be 1 or more; got 0"),
        ({"servers": -1}, "`servers` must be 0 or more"),
        ({"restarts": -1}, "`restarts` must be 0 or more"),
        ({"command": ("nowhere.py",)}, "no program 'nowhere.py'"),
        (
            {"hosts": ("a:1",), "workers": 2},
            "must be 2, one for each of worker 0",
        ),
        ({"hosts": ("a:1",)}, "`task` must say .* from 0 to 0"),
        ({"hosts": ("a:1",), "task": 1}, "got 1"),
    ],
    ids=repr,
)
def test_a_cluster_that_cannot_be_is_refused(program, options, words):
    given = {"command": (program(""),), **options}

    with pytest.raises(errors.ArgumentError, match=words):
        Launch(**given)
