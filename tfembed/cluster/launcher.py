"""A cluster of processes on one machine, or one task of a real one.

Each process runs the same program, and learns by TF_CONFIG which task it is.
This module imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from tfembed import errors

__all__ = ["Launch", "launch"]

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HERE = "localhost"
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux' prctl.
_LAST_LINES_SECS = 5.0

# A task and its status, -n if signal n ended it; or None and a signal's number.
_Events: TypeAlias = "queue.SimpleQueue[tuple[_Task | None, int]]"


@dataclasses.dataclass(frozen=True)
class Launch:
    """The processes to start.

    Without servers all tasks are workers, as MultiWorkerMirroredStrategy has
    them. With servers there is a chief too, the coordinator of a
    ParameterServerStrategy or the chief of an estimator's cluster.

    Args:
      command: the program and its arguments; a file that ends in ".py" is run
        by this Python.
      workers: the number of workers, from 1 on, beside the chief.
      servers: the number of parameter servers.
      restarts: how often all tasks are started again after one has died.
      hosts: the address "host:port" of each task, if they run on several
        machines: that of the chief, if there is one, of the workers, and of the
        servers. Empty: all tasks run here.
      task: which of `hosts` is started here, from 0 on.
      grace: seconds that tasks have to end, after a signal, or after the chief.

    Raises:
      tfembed.errors.ArgumentError: a number below its least, a program that is
        not there, `hosts` that are not one per task, or no `task` among them.
    """

    command: tuple[str, ...]
    workers: int = 1
    servers: int = 0
    restarts: int = 0
    hosts: tuple[str, ...] = ()
    task: int | None = None
    grace: float = 10.0

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("servers", 0), ("restarts", 0)):
            if getattr(self, name) < least:
                raise errors.ArgumentError(
                    f"`{name}` must be {least} or more; got "
                    f"{getattr(self, name)}."
                )
        program = self.command[0] if self.command else ""
        if not pathlib.Path(program).is_file():
            raise errors.ArgumentError(
                f"There is no program '{program}' to start."
            )
        if not self.hosts:
            return
        names = ", ".join(f"{kind} {index}" for kind, index in self.tasks)
        if len(self.hosts) != len(self.tasks):
            raise errors.ArgumentError(
                f"`hosts` must be {len(self.tasks)}, one for each of {names}; "
                f"got {len(self.hosts)}."
            )
        if self.task is None or not 0 <= self.task < len(self.tasks):
            raise errors.ArgumentError(
                f"`task` must say which of `hosts` this machine is, from 0 to "
                f"{len(self.tasks) - 1} ({names}); got {self.task}."
            )

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """The type and the index of each task."""
        numbers = {
            "chief": 1 if self.servers else 0,
            "worker": self.workers,
            "ps": self.servers,
        }
        return [
            (kind, index)
            for kind, number in numbers.items()
            for index in range(number)
        ]

    def configs(self) -> dict[str, str]:
        """Returns the TF_CONFIG of each task to start, by the task's name."""
        addresses = self.hosts or tuple(
            f"{_HERE}:{port}" for port in _free_ports(len(self.tasks))
        )
        cluster: dict[str, list[str]] = {}
        for (kind, _), address in zip(self.tasks, addresses, strict=True):
            cluster.setdefault(kind, []).append(address)
        started = self.tasks
        if self.hosts and self.task is not None:
            started = [self.tasks[self.task]]
        return {
            f"{kind} {index}": json.dumps(
                {"cluster": cluster, "task": {"type": kind, "index": index}}
            )
            for kind, index in started
        }


def launch(options: Launch) -> int:
    """Runs a cluster to its end; its output goes to stdout, line by line.

    It ends when the chief has ended, or all workers where there is none. If a
    task ends with another status than 0, all others are stopped, and all are
    started again if restarts are left. A signal to this process is passed on.
    No process of the tasks is left in any case.

    Returns:
      0, or the status of the task that died; 128 + n after signal n.
    """
    events: _Events = queue.SimpleQueue()
    with _signals_as_events(events):
        for left in range(options.restarts, -1, -1):
            cluster = _Cluster(options, events)
            try:
                status = cluster.run()
            finally:
                cluster.end()
            if status == 0 or cluster.interrupted_by or not left:
                break
            _say(f"all tasks are started again; restarts left: {left - 1}")
    return status


class _Task:
    """A process of the cluster, and its leader of a group of processes.

    Args:
      name: the type and the index of the task.
      process: the process, as started.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._process = process
        self._threads: list[threading.Thread] = []

    def watch(self, events: _Events, output: threading.Lock) -> None:
        """Prints the task's lines, and makes an event of its end."""
        for target in (self._print, self._wait):
            thread = threading.Thread(
                target=target, args=(events, output), daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def signal(self, number: int) -> None:
        """Sends a signal to the task and to the processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Kills what is left of the task and of its processes."""
        # Until it is waited for, the leader keeps the number of its group.
        self.signal(signal.SIGKILL)
        for thread in self._threads:
            # A process that left the group may keep the output open.
            thread.join(timeout=_LAST_LINES_SECS)
        self._process.wait()

    def _print(self, events: _Events, output: threading.Lock) -> None:
        lines: Any = self._process.stdout
        for line in lines:
            with output:
                try:
                    sys.stdout.buffer.write(
                        b"[%s] %s\n"
                        % (self.name.encode(), line.rstrip(b"\r\n"))
                    )
                    sys.stdout.buffer.flush()
                except OSError:  # As under `| head`.
                    events.put((None, signal.SIGPIPE))
                    return

    def _wait(self, events: _Events, output: threading.Lock) -> None:
        del output
        ended: Any = os.waitid(
            os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT
        )
        is_exit = ended.si_code == os.CLD_EXITED
        events.put((self, ended.si_status if is_exit else -ended.si_status))


class _Cluster:
    """The tasks of one attempt.

    Attributes:
      interrupted_by: the signal to this process that ended the attempt; 0: none.
    """

    def __init__(self, options: Launch, events: _Events) -> None:
        self.interrupted_by = 0
        self._options = options
        self._events = events
        self._tasks: list[_Task] = []
        self._running: set[_Task] = set()

    def run(self) -> int:
        """Starts the tasks; returns the status of the cluster."""
        command = list(self._options.command)
        if command[0].endswith(".py"):
            command.insert(0, sys.executable)
        for name, config in self._options.configs().items():
            task = _Task(name, _started(command, config))
            self._tasks.append(task)
            self._running.add(task)
        output = threading.Lock()
        for task in self._tasks:  # All are forked before the first thread.
            task.watch(self._events, output)
        died = self._wait_for(self._deciding())
        if died is None and not self.interrupted_by:
            # Workers that a chief leaves behind may have something to end.
            self._wait_for(self._of("worker"), self._options.grace)
        self._stop(self.interrupted_by or signal.SIGTERM)
        if self.interrupted_by:
            return 128 + self.interrupted_by
        return 0 if died is None else died

    def end(self) -> None:
        """Kills what is left of the tasks."""
        for task in self._tasks:
            task.end()

    def _of(self, kind: str) -> set[_Task]:
        return {task for task in self._tasks if task.name.startswith(kind)}

    def _deciding(self) -> set[_Task]:
        """Returns the tasks whose end is that of the cluster."""
        return self._of("chief") or self._of("worker") or set(self._tasks)

    def _stop(self, number: int) -> None:
        """Signals the tasks that run, and gives them time to end."""
        for task in self._running:
            task.signal(signal.SIGTERM if number == signal.SIGPIPE else number)
        self._wait_for(set(self._running), self._options.grace, stops=True)

    def _wait_for(
        self,
        tasks: set[_Task],
        seconds: float | None = None,
        *,
        stops: bool = False,
    ) -> int | None:
        """Waits until tasks have ended, one has died, or a signal comes.

        Args:
          tasks: the tasks.
          seconds: how long at most; None: without a limit.
          stops: whether the tasks were told to end, with whatever status.

        Returns:
          The exit status of a task that died, else None.
        """
        limit = None if seconds is None else time.monotonic() + seconds
        while tasks & self._running:
            left = None if limit is None else max(0.0, limit - time.monotonic())
            try:
                task, status = self._events.get(timeout=left)
            except queue.Empty:
                return None
            if task is None:
                _say(f"{signal.Signals(status).name} came")
                self.interrupted_by = status
                return None
            if task not in self._running:
                continue  # Of the attempt before.
            self._running.discard(task)
            if status and not stops:
                _say(f"{task.name} {_in_words(status)}; all are stopped")
                return status if status > 0 else 128 - status
        return None


def _started(command: Sequence[str], config: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TF_CONFIG": config, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def _die_with_parent() -> None:
    """Has Linux kill this new process once the one that started it is gone."""
    if sys.platform == "linux":
        ctypes.pythonapi.prctl(_DIES_WITH_PARENT, signal.SIGKILL)


@contextlib.contextmanager
def _signals_as_events(events: _Events) -> Iterator[None]:
    before = {
        number: signal.signal(
            number, lambda number, frame: events.put((None, number))
        )
        for number in _PASSED_ON
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_ports(number: int) -> list[int]:
    """Returns ports of this machine at which nobody listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind((_HERE, 0))
        return [one.getsockname()[1] for one in sockets]


def _in_words(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by {signal.Signals(-status).name}"


def _say(text: str) -> None:
    sys.stderr.write(f"tfembed launch: {text}\n")
    sys.stderr.flush()
