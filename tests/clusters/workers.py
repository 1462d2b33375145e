"""Programs that several workers of a MultiWorkerMirroredStrategy run."""

from __future__ import annotations

import json

import fresh_process
from tests.servers import free_ports

_HEAD = """
import json, os, sys
os.environ["TF_CONFIG"] = sys.argv[1]
import numpy as np
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
me, workers = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
saw = {}

def failure(call):
    try:
        return f"no error: {call()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def end():
    print(json.dumps(saw), flush=True)
    os._exit(0)  # TensorFlow would wait for the other workers.
"""


def run(program, count, *arguments, killed=()):
    """Runs a program by workers that know `me`, `workers` and `strategy`.

    It puts what it sees into the dict `saw`, and ends by `end()`.

    Args:
      program: the program's text.
      count: how many workers.
      arguments: sys.argv[2:].
      killed: the workers that end by a signal.

    Returns:
      Per worker that was not killed what it saw.
    """
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    text = _HEAD + fresh_process.textwrap.dedent(program)
    processes = [
        fresh_process.start(
            text,
            json.dumps(
                {
                    "cluster": {"worker": addresses},
                    "task": {"type": "worker", "index": i},
                }
            ),
            *arguments,
        )
        for i in range(count)
    ]
    printed = [process.communicate() for process in processes]
    for i, process in enumerate(processes):
        wanted = process.returncode == 0 or i in killed
        assert wanted, (i, process.returncode, printed[i][1][-4000:])
    return [
        json.loads(out.splitlines()[-1])
        for i, (out, _) in enumerate(printed)
        if i not in killed
    ]
