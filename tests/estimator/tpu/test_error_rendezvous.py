"""The error that a user is shown, of those that several threads have."""

from __future__ import annotations

import sys
import threading

import pytest
import tensorflow as tf

from tfembed.estimator.tpu.errors import ErrorRendezvous


def cancelled():
    return tf.errors.CancelledError(None, None, "Step was cancelled.")


def test_the_cause_is_raised_and_not_what_followed_from_it():
    rendezvous = ErrorRendezvous(2)
    with rendezvous.catch_errors("outfeed"):
        raise cancelled()
    with rendezvous.catch_errors("infeed"):
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        rendezvous.raise_errors()


def test_a_follow_up_without_a_cause_is_raised():
    rendezvous = ErrorRendezvous(1)
    with rendezvous.catch_errors("infeed"):
        raise cancelled()

    with pytest.raises(tf.errors.CancelledError):
        rendezvous.raise_errors()


@pytest.mark.parametrize(
    "error", [tf.errors.AbortedError, tf.errors.UnavailableError]
)
def test_errors_that_a_session_recovers_from_are_not_kept(error):
    rendezvous = ErrorRendezvous(1)
    with rendezvous.catch_errors("infeed"):
        raise error(None, None, "gone")

    rendezvous.raise_errors()


def test_an_error_is_kept_when_its_source_says_that_it_is_done():
    rendezvous = ErrorRendezvous(1)
    with rendezvous.catch_errors("infeed"):
        raise ValueError("bad")
    rendezvous.record_done("infeed")

    with pytest.raises(ValueError, match="bad"):
        rendezvous.raise_errors()


def test_sources_that_run_are_waited_for():
    rendezvous = ErrorRendezvous(2)
    rendezvous.record_done("training_loop")

    def fail():
        with rendezvous.catch_errors("infeed"):
            raise ValueError("late")

    timer = threading.Timer(0.2, fail)
    timer.start()
    with pytest.raises(ValueError, match="late"):
        rendezvous.raise_errors(timeout_sec=20)
    timer.join()


class Session:
    def __init__(self):
        self.closed = threading.Event()

    def close(self):
        self.closed.set()


def test_a_session_is_closed_so_that_other_threads_end(monkeypatch):
    monkeypatch.setattr("tfembed.estimator.tpu.errors._CLOSE_AFTER_SECS", 0)
    rendezvous, session = ErrorRendezvous(2), Session()
    with rendezvous.catch_errors("infeed", session):
        raise ValueError("bad")

    assert session.closed.wait(20)


def test_a_failed_check_of_numbers_leaves_the_session_open(monkeypatch):
    monkeypatch.setattr("tfembed.estimator.tpu.errors._CLOSE_AFTER_SECS", 0)
    rendezvous, session = ErrorRendezvous(2), Session()
    with tf.Graph().as_default():
        op = tf.debugging.check_numerics(tf.constant(1.0), "text").op
    try:
        raise tf.errors.InvalidArgumentError(None, op, "Gradient is NaN")
    except tf.errors.InvalidArgumentError:
        rendezvous.record_error("training_loop", sys.exc_info(), session)

    assert not session.closed.wait(0.3)
