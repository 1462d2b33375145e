"""Batches pair when the calls run, and calls that come too early raise."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf

from tfembed import errors
from tfembed.embedding.features.inputs import InputSpec
from tfembed.embedding.steps.batch_queue import Batch
from tfembed.embedding.steps.step_queue import QueueBound, StepQueue
from tfembed.ops import feature_ids

SPECS = [
    InputSpec(kind, 0, batch_size=2, id_dtype=tf.int64, validate=True)
    for kind in ("sparse", "ragged", "dense")
]


def _batch(first_id: int, *, training: bool = True) -> Batch:
    first_id = tf.cast(first_id, tf.int64)
    sparse = tf.SparseTensor([[0, 0], [1, 2]], tf.stack([first_id, 7]), [2, 3])
    ragged = tf.RaggedTensor.from_row_splits(first_id[None], [0, 1, 1])
    dense = tf.stack([first_id, first_id + 1])
    features = [feature_ids(x) for x in (sparse, ragged, dense)]
    return Batch(training, features, SPECS)


@pytest.fixture
def queue() -> StepQueue:
    return _queue()


def _queue(**bound) -> StepQueue:
    return StepQueue(SPECS, label="on replica 0", bound=QueueBound(**bound))


def _ids(batch: Batch) -> list[list[int]]:
    return [one.ids.numpy().tolist() for one in batch.features]


def _step(queue: StepQueue) -> Batch:
    batch = queue.take()
    queue.hold(batch)
    return batch


def test_batches_come_in_the_order_in_which_they_were_put(queue):
    queue.put(_batch(1))
    queue.put(_batch(5))
    assert _ids(_step(queue)) == [[1, 7], [1], [1, 2]]
    assert _ids(queue.finish()) == [[1, 7], [1], [1, 2]]
    assert _ids(_step(queue)) == [[5, 7], [5], [5, 6]]


def test_a_batch_comes_out_as_it_was_put(queue):
    batch = _batch(1)
    queue.put(batch)
    for put, taken in zip(batch.features, queue.take().features, strict=True):
        assert put.kind == taken.kind
        for field in ("ids", "rows", "weights", "batch_size"):
            tf.debugging.assert_equal(
                getattr(put, field), getattr(taken, field)
            )


def test_a_traced_take_pairs_with_an_eager_put(queue):
    step = tf.function(lambda: _step(queue).features[2].ids)
    queue.put(_batch(1))
    assert step().numpy().tolist() == [1, 2]
    queue.finish()
    queue.put(_batch(3))
    assert step().numpy().tolist() == [3, 4]
    assert step.experimental_get_tracing_count() == 1


def test_a_loop_pairs_its_own_puts(queue):
    @tf.function
    def run(n):
        total = tf.constant(0, tf.int64)
        for i in tf.range(n):
            ids = tf.cast(i, tf.int64)
            queue.put(_batch(ids))
            total += _step(queue).features[2].ids[0]
            queue.finish()
        return total

    assert int(run(tf.constant(5))) == 0 + 1 + 2 + 3 + 4


def _eager(function):
    return function


@pytest.mark.parametrize("wrap", [_eager, tf.function])
def test_take_raises_where_nothing_was_put(queue, wrap):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="nothing enqueued on replica 0"
    ):
        wrap(lambda: queue.take().features[0].ids)()


@pytest.mark.parametrize("wrap", [_eager, tf.function])
def test_finish_raises_where_nothing_was_taken(queue, wrap):
    queue.put(_batch(1))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="no dequeued batch on replica 0"
    ):
        wrap(lambda: queue.finish().features[0].ids)()


@pytest.mark.parametrize("wrap", [_eager, tf.function])
def test_finish_raises_for_a_batch_put_for_inference(queue, wrap):
    queue.put(_batch(1, training=False))
    _step(queue)
    with pytest.raises(tf.errors.InvalidArgumentError, match="training=False"):
        wrap(lambda: queue.finish().features[0].ids)()


@pytest.mark.parametrize("wrap", [_eager, tf.function])
def test_take_raises_while_a_training_batch_waits_to_be_finished(queue, wrap):
    queue.put(_batch(1))
    queue.put(_batch(2))
    _step(queue)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="waiting for its apply_gradients"
    ):
        wrap(lambda: queue.take().features[0].ids)()


@pytest.mark.parametrize("wrap", [_eager, tf.function])
def test_take_may_drop_a_training_batch_that_was_not_finished(wrap):
    queue = StepQueue(SPECS, label="", drops_unfinished=True)
    step = wrap(lambda: _step(queue).features[1].ids)
    for first_id in (1, 2, 3):
        queue.put(_batch(first_id))
        assert step().numpy().tolist() == [first_id]
    assert _ids(queue.finish())[1] == [3]


def test_a_batch_for_inference_need_not_be_finished(queue):
    for first_id in (1, 2):
        queue.put(_batch(first_id, training=False))
        assert _ids(_step(queue))[1] == [first_id]
    queue.put(_batch(3))
    _step(queue)
    assert _ids(queue.finish())[1] == [3]


def test_clear_forgets_all_batches(queue):
    queue.put(_batch(1))
    queue.put(_batch(2))
    _step(queue)
    queue.clear()
    queue.put(_batch(3))
    assert _ids(_step(queue))[1] == [3]


def _put(queue, in_function):
    def put(i):
        queue.put(_batch(i))

    return tf.function(put) if in_function else put


@pytest.mark.parametrize("in_function", [False, True])
def test_a_full_queue_waits_and_then_says_so(in_function):
    queue = _queue(batches=2, seconds=0.05)
    put = _put(queue, in_function)
    put(tf.constant(1))
    put(tf.constant(2))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"2 batches .* 0\.05 seconds"
    ):
        put(tf.constant(3))
    assert _ids(_step(queue))[1] == [1]
    put(tf.constant(3))
    queue.finish()
    assert _ids(_step(queue))[1] == [2]


@pytest.mark.parametrize("in_function", [False, True])
def test_a_thread_that_runs_ahead_waits_for_room(in_function):
    queue = _queue(batches=2, seconds=60)
    put = _put(queue, in_function)
    thread = threading.Thread(
        target=lambda: [put(tf.constant(i)) for i in range(20)]
    )
    thread.start()
    seen: list[int] = []
    while len(seen) < 20:
        if int(queue.size()):
            seen += _ids(_step(queue))[1]
            queue.finish()
    thread.join()
    assert seen == list(range(20))


@pytest.mark.parametrize("bound", [{"batches": 0}, {"seconds": -1.0}])
def test_a_bound_that_cannot_be_is_refused(bound):
    with pytest.raises(errors.ArgumentError, match="must be"):
        QueueBound(**bound)
