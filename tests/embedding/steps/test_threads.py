"""Threads that make an object's tables and queues at the same time."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import counting, v0

THREADS, STEPS = 8, 10


def _in_threads(work):
    """Lets all threads begin at once; raises what any of them raised."""
    barrier = threading.Barrier(THREADS)
    raised = []

    def run(i):
        try:
            barrier.wait()
            work(i)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def test_threads_with_names_of_their_own_train_one_table():
    embedding = counting.embedding()

    def train(i):
        for _ in range(STEPS):
            embedding.enqueue({"clicks": tf.constant([1])}, name=f"{i}")
            counting.count(embedding, f"{i}")

    _in_threads(train)
    assert counting.moved(embedding) == [0, THREADS * STEPS, 0, 0]


def test_threads_that_enqueue_under_one_name_lose_no_batch():
    embedding = counting.embedding()
    _in_threads(lambda i: embedding.enqueue({"clicks": tf.constant([i % 4])}))
    for _ in range(THREADS):
        counting.count(embedding)
    assert counting.moved(embedding) == [THREADS / 4] * 4


@pytest.mark.parametrize(
    "kind", [tfembed.TPUEmbeddingV0, tfembed.TPUEmbeddingForServing]
)
def test_threads_look_up_in_one_table(kind):
    feature = tfembed.FeatureConfig(v0.table())
    embedding = kind(feature, tfembed.Adagrad(0.1))
    found = {}

    def look_up(i):
        found[i] = embedding(tf.constant([i % 4])).numpy()

    _in_threads(look_up)
    for i, rows in found.items():
        np.testing.assert_array_equal(rows, v0.ROWS[[i % 4]])
