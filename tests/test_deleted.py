"""Tests' own check of deleted objects finds those that are kept, and by whom."""

from __future__ import annotations

import gc
import threading
import weakref

import deleted


class _Node:
    def __init__(self):
        self.me = self


def test_a_cycle_that_nobody_keeps_is_gone():
    reference = weakref.ref(_Node())

    assert deleted.holders(reference) == []


def test_what_is_kept_is_told_with_its_holder():
    holder = {"a key": _Node()}

    (_, *above) = deleted.holders(weakref.ref(holder["a key"]))

    assert any("a key" in name for name in above), above


def test_a_collection_in_another_thread_does_not_matter():
    begun, ends = threading.Event(), threading.Event()

    class Slow(_Node):
        def __del__(self):
            begun.set()
            ends.wait(10)

    Slow()
    other = threading.Thread(target=gc.collect)
    other.start()
    begun.wait(10)
    reference = weakref.ref(_Node())
    threading.Timer(0.02, ends.set).start()

    assert gc.collect() == 0
    assert deleted.holders(reference) == []
    other.join()
