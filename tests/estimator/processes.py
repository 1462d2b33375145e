"""Processes of their own that train, and the clusters that they make."""

from __future__ import annotations

import json
import os
import time

import tensorflow as tf

import fresh_process
from tests.servers import free_ports

v1 = tf.compat.v1

SECONDS = 240  # The longest that anything here may take, on a busy machine.


def start(function, *arguments):
    """Starts a function in a process that has imported TensorFlow already."""
    process = fresh_process.context().Process(
        target=function, args=arguments, daemon=True
    )
    process.start()
    return process


def wait_until(holds, process=None):
    """Waits for a condition, or for the end of a process."""
    deadline = time.monotonic() + SECONDS
    while not holds() and (process is None or process.is_alive()):
        assert time.monotonic() < deadline, holds
        time.sleep(0.02)


def wait_for_checkpoint(folder, process=None):
    """Waits until there is another checkpoint than now."""
    before = tf.train.latest_checkpoint(folder)
    wait_until(lambda: tf.train.latest_checkpoint(folder) != before, process)


class Cluster:
    """A chief, workers, parameter servers and an evaluator, each a process.

    As a context, it ends all processes.

    Args:
      function: what each runs, with TF_CONFIG set; it may be pickled.
      arguments: of the function.
      servers: how many parameter servers.
      workers: how many workers beside the chief.
    """

    def __init__(self, function, *arguments, servers=2, workers=1):
        counts = {"chief": 1, "worker": workers, "ps": servers}
        ports = iter(free_ports(sum(counts.values())))
        self._spec = {
            job: [f"localhost:{next(ports)}" for _ in range(count)]
            for job, count in counts.items()
        }
        self._task = (function, arguments)
        self._processes = {}

    def __enter__(self):
        for job, addresses in self._spec.items():
            for index in range(len(addresses)):
                self.start(job, index)
        self.start("evaluator", 0)
        return self

    def __exit__(self, *unused):
        for process in self._processes.values():
            process.kill()
            process.join()

    def start(self, job, index):
        """Starts a task, for the first time or again."""
        environment = {
            "cluster": self._spec,
            "task": {"type": job, "index": index},
        }
        self._processes[job, index] = start(
            _run_task, json.dumps(environment), *self._task
        )

    def kill(self, job, index):
        """Ends a task at once."""
        self._processes[job, index].kill()
        self._processes[job, index].join()

    def wait_for_checkpoint(self, folder):
        """Waits for another checkpoint than now, or for the chief's end."""
        wait_for_checkpoint(folder, self._processes["chief", 0])

    def wait(self, job, index=0):
        """Waits for a task's end; returns its status."""
        self._processes[job, index].join(SECONDS)
        return self._processes[job, index].exitcode


class Slow(v1.train.SessionRunHook):
    """Leaves time between steps, so that a moment may fall there too."""

    def after_run(self, run_context, run_values):
        time.sleep(0.02)


def _run_task(environment, function, arguments):
    os.environ["TF_CONFIG"] = environment
    function(*arguments)
