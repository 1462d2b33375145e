"""SIGTERM stops training, and what runs inside of it, after the running step.

While a training is `stopping()`, SIGTERM waits until it has saved a checkpoint.
Evaluations, predictions and exports of its hooks and listeners, and those of
`train_and_evaluate`, look at `came()` after each batch and end without a
result. Outside of a training the signal has its usual effect on them, at once.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfembed.errors import StoppedError
from tfembed.estimator.private import v1_sessions

# The seconds after which another SIGTERM counts as a second one.
_UNTIL_SECOND_SIGTERM = 5.0

# The hooks of the trainings that delay SIGTERM now, the outermost first.
_delaying: list[StopTrainingHook] = []


class StopTrainingHook(tf.compat.v1.train.SessionRunHook):
    """Requests the end of training after SIGTERM.

    Attributes:
      came: Whether the signal has come.
    """

    def __init__(self) -> None:
        self.came = False

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stops training after a step; the session then saves a checkpoint."""
        del run_values
        if self.came:
            tf.compat.v1.logging.info(
                "SIGTERM came: training saves a checkpoint and stops."
            )
            run_context.request_stop()


class StopHook(tf.compat.v1.train.SessionRunHook):
    """Ends a session inside of a training after the running batch.

    Args:
      purpose: The session, as `check` names it.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Raises `StoppedError` if SIGTERM has come."""
        del run_context, run_values
        check(self._purpose)


def came() -> bool:
    """Whether a training that runs has been told to stop."""
    return any(hook.came for hook in _delaying)


def check(purpose: str) -> None:
    """Raises an error if a training that runs has been told to stop.

    Args:
      purpose: The call that ends, for the error: "an evaluation".

    Raises:
      tfembed.errors.StoppedError: (also RuntimeError) SIGTERM has come.
    """
    if came():
        raise StoppedError(
            f"SIGTERM came: {purpose} inside of a training ends without a "
            "result. The training saves a checkpoint and stops."
        )


@contextlib.contextmanager
def stopping() -> Iterator[StopTrainingHook]:
    """Delays SIGTERM until training has saved a checkpoint.

    Then the previous handler runs; without one, SystemExit ends the process
    with the status of that signal. If a step does not end because its input
    does not come, a second SIGTERM, some seconds later, ends the process at
    once. (Shells and schedulers may send the first one twice.)
    """
    hook = StopTrainingHook()
    before = signal.getsignal(signal.SIGTERM)
    if (
        threading.current_thread() is not threading.main_thread()
        or before is signal.SIG_IGN
        or before is None
    ):
        yield hook
        return

    def note(signum: int, frame: Any) -> None:
        del signum, frame
        hook.came = True

    signal.signal(signal.SIGTERM, note)
    _delaying.append(hook)
    try:
        with _watched(before):
            yield hook
    finally:
        _delaying.remove(hook)
        signal.signal(signal.SIGTERM, before)
        if hook.came:
            if callable(before):
                before(signal.SIGTERM, None)
            else:
                raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def _watched(before: Any) -> Iterator[None]:
    """Watches for SIGTERM in a thread, while the main thread waits for a step.

    Python runs handlers in the main thread, between two session runs.

    Args:
      before: The previous handler. If it is the user's, a second signal does
        not end the process.
    """
    heard, told = socket.socketpair()
    told.setblocking(False)
    outer = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    if outer != -1:  # An event loop uses the wakeup fd.
        signal.set_wakeup_fd(outer)
        heard.close()
        told.close()
        yield
        return
    thread = threading.Thread(
        target=_hear, args=(heard, not callable(before)), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        told.close()  # The thread then reads EOF.
        thread.join()
        heard.close()


def _hear(heard: socket.socket, second_one_ends: bool) -> None:
    first: float | None = None
    while numbers := heard.recv(64):
        if signal.SIGTERM not in numbers:
            continue
        if first is None:
            first = time.monotonic()
            tf.compat.v1.logging.info(
                "SIGTERM came: training, and what runs inside of it, end after "
                "the step that runs.%s",
                f" A second SIGTERM, {_UNTIL_SECOND_SIGTERM:g} s later or more, "
                "ends the process at once, without a checkpoint."
                if second_one_ends
                else "",
            )
        elif (
            second_one_ends
            and time.monotonic() - first >= _UNTIL_SECOND_SIGTERM
        ):
            tf.compat.v1.logging.warn(
                "A second SIGTERM came before the step had ended: the process "
                "ends without a checkpoint of it."
            )
            v1_sessions.end_process(128 + signal.SIGTERM)
