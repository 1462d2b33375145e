"""Calls of a step that come too early and wait."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf

from tfembed.ops import step

MODES = pytest.mark.parametrize("run", [lambda f: f, tf.function])


def create(*, most_batches=9):
    return step.create(
        "here", most_batches=most_batches, seconds=0.0, waits=True
    )


@MODES
def test_a_take_that_waits_gets_what_another_thread_puts(run):
    queue = create()
    later = threading.Timer(0.05, lambda: step.put(queue, [tf.constant(True)]))
    later.start()
    assert run(lambda: step.take(queue, [tf.bool]))()[0].numpy()
    later.join()


def test_a_finish_that_waits_gets_what_another_thread_holds():
    queue = create()
    later = threading.Timer(0.05, lambda: step.hold(queue, [tf.constant(True)]))
    later.start()
    assert step.finish(queue, [tf.bool])[0].numpy()
    later.join()


def test_a_step_that_fails_elsewhere_ends_what_waits():
    queue = create()

    @tf.function
    def fails(number):
        taken = step.take(queue, [tf.bool])
        # Found when it runs, beside the take.
        tf.debugging.assert_equal(number, 2, "elsewhere")
        return taken

    with pytest.raises(
        (tf.errors.InvalidArgumentError, tf.errors.CancelledError)
    ):
        fails(tf.constant(1))
    step.put(queue, [tf.constant(True)])
    assert step.sizes(queue).numpy().tolist() == [1, 0]


def test_many_threads_put_and_take_every_batch_once():
    queue, each = create(most_batches=3), 50
    found: list[int] = []

    def puts(first):
        for i in range(first, first + each):
            batch = [tf.constant(False), tf.constant(i, tf.int64)]
            step.put(queue, batch)

    def takes():
        for _ in range(each):
            taken = step.take(queue, [tf.bool, tf.int64])
            found.append(int(taken[1]))

    threads = [
        threading.Thread(target=puts, args=(k * each,)) for k in range(4)
    ] + [threading.Thread(target=takes) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(4 * each))
