"""A contender in a process of its own, which does what it is told."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]


class WorkerError(RuntimeError):
    """A contender failed; what it printed is on stderr."""


class Worker:
    """One contender, started at once.

    Args:
      session: the module whose `Session` it is.
      contender: the name by which `Session` knows it.
      python: the interpreter that has it installed.
      threads: of its thread pools.
      environment: variables to add.
    """

    def __init__(
        self,
        session: str,
        contender: str,
        *,
        python: str = sys.executable,
        threads: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.contender = contender
        command = [python, "-m", "benchmarks.worker", session, contender]
        self._process = subprocess.Popen(
            [*command, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                **(environment or {}),
            },
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def call(self, method: str, **arguments: Any) -> Any:
        """What `method` of the worker's `Session` returns."""
        self.start(method, **arguments)
        return self.finish()

    def start(self, method: str, **arguments: Any) -> None:
        """Sends a call; `finish` waits for it."""
        line = json.dumps({"method": method, "arguments": arguments})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def finish(self) -> Any:
        """The result of the call that was started."""
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(
                f"{self.contender} ended with {self._process.wait()}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.contender}: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """Ends the process; its memory is free afterwards."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
