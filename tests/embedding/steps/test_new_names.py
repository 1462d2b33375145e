"""Steps that each have a new name leave nothing behind."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from embedding import marks
from tfembed import errors
from tfembed.embedding.steps import eager_calls
from tfembed.embedding.steps.step_forms import RecentNames
from tfembed.embedding.steps.step_queue import StepQueue

_STEPS = 300
_NAMES = 66  # That are known at once: the last 64, and those in use.


@pytest.fixture
def queues(monkeypatch):
    """The queues of names that are alive."""
    alive: weakref.WeakSet[StepQueue] = weakref.WeakSet()
    make = StepQueue.__init__

    def noted(queue, *args, **options):
        make(queue, *args, **options)
        alive.add(queue)

    monkeypatch.setattr(StepQueue, "__init__", noted)
    return alive


@pytest.fixture
def tensorflow_queues(monkeypatch):
    """The queues of TensorFlow that were made, which are never freed."""
    made = []
    make = tf.queue.FIFOQueue
    monkeypatch.setattr(
        tf.queue,
        "FIFOQueue",
        lambda *args, **options: made.append(1) or make(*args, **options),
    )
    return made


def _embedding(**options):
    table = tfembed.TableConfig(
        50, 4, initializer=tf.constant_initializer(0.5), name="table"
    )
    config = {"ids": tfembed.FeatureConfig(table)}
    return tfembed.TPUEmbedding(config, tfembed.Adagrad(0.1), **options)


def _batch(i):
    return {"ids": tf.constant(np.arange(i, i + 8) % 50)}


def _step(embedding, i, name):
    embedding.enqueue(_batch(i), name=name)
    activations = embedding.dequeue(name=name)
    embedding.apply_gradients(activations, name=name)


def _steps(embedding, names):
    for i, name in enumerate(names):
        _step(embedding, i, name)


def _evaluate(embedding, i, name):
    embedding.enqueue(_batch(i), training=False, name=name)
    return embedding.dequeue(name=name)["ids"].numpy()


def _rows(embedding):
    (table,) = embedding.embedding_tables.values()
    return table.numpy()


def _new_names(n=_STEPS, prefix="step"):
    return [f"{prefix}{i}" for i in range(n)]


@pytest.mark.parametrize(
    "engine", ["host", pytest.param("xla", marks=marks.NEEDS_XLA)]
)
def test_new_names_train_as_one_does_with_few_queues(
    engine, queues, tensorflow_queues
):
    embedding, usual = _embedding(engine=engine), _embedding(engine=engine)
    _steps(usual, [None] * _STEPS)
    _steps(embedding, _new_names())
    np.testing.assert_array_equal(_rows(embedding), _rows(usual))
    assert 2 < len(queues) <= _NAMES + 1
    assert not tensorflow_queues
    assert len(embedding._engine.resources) <= _NAMES + 2


def test_steps_that_overlap_are_one_update_behind_under_new_names(
    queues, tensorflow_queues
):
    options = {"pipeline_execution_with_tensor_core": True}
    embedding, usual = _embedding(**options), _embedding(**options)
    found = {}
    for one, names in ((usual, [None] * _STEPS), (embedding, _new_names())):
        del tensorflow_queues[:]
        found[one] = []
        for i, name in enumerate(names):
            one.enqueue(_batch(i), name=name)
            activations = one.dequeue(name=name)
            found[one].append(activations["ids"].numpy())
            one.apply_gradients(activations, name=name)
    np.testing.assert_array_equal(found[embedding], found[usual])
    np.testing.assert_array_equal(_rows(embedding), _rows(usual))
    assert 2 < len(queues) <= _NAMES + 1
    # A lookup ahead, and an update behind.
    assert 2 < len(tensorflow_queues) <= 2 * _NAMES


def test_new_names_of_replicas_have_few_queues(queues):
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope():
        embedding = _embedding()
        embedding.build(per_replica_batch_size=8)

    def replica_step(i, name):
        _step(embedding, i, name)

    for i, name in enumerate(_new_names(150)):
        strategy.run(replica_step, args=(i, name))
    assert 2 < len(queues) <= 2 * _NAMES


def test_evaluation_under_new_names_has_few_queues(queues):
    embedding = _embedding()
    for i, name in enumerate(_new_names()):
        np.testing.assert_array_equal(
            _evaluate(embedding, i, name), np.full([8, 4], 0.5)
        )
    assert 1 < len(queues) <= _NAMES


def test_calls_under_new_names_are_counted_for_a_while(monkeypatch):
    monkeypatch.setattr(eager_calls, "_COUNTED", 20)
    embedding = _embedding()
    _steps(embedding, _new_names(30))
    assert len(embedding._eager_calls._counts) <= 20
    _steps(embedding, ["often"] * 20)
    assert len(embedding._eager_calls._functions) == 3


@pytest.mark.parametrize("calls", [1, 2])
def test_what_is_on_its_way_is_kept(calls):
    embedding = _embedding()
    embedding.enqueue(_batch(0), name="old")
    found = embedding.dequeue(name="old") if calls == 2 else None
    for i, name in enumerate(_new_names()):
        _evaluate(embedding, i, name)
    if calls == 1:
        found = embedding.dequeue(name="old")
    embedding.apply_gradients(found, name="old")
    rows = _rows(embedding)
    assert (rows[:8] < 0.5).all()
    assert (rows[8:] == 0.5).all()


def test_the_name_of_a_function_is_kept():
    embedding = _embedding()
    embedding.build(per_replica_batch_size=8)

    @tf.function
    def step(ids):
        embedding.enqueue({"ids": ids}, training=False, name="traced")
        return look()

    @tf.function
    def look():
        return embedding.dequeue(name="traced")["ids"]

    # An eager enqueue feeds what was traced before, whatever came in between.
    step(_batch(0)["ids"])
    _steps(embedding, _new_names())
    rows = _rows(embedding)
    embedding.enqueue(_batch(3), training=False, name="traced")
    np.testing.assert_array_equal(look(), rows[3:11])


def test_a_name_comes_back_and_may_have_another_form():
    embedding = _embedding()
    _steps(embedding, _new_names())
    ragged = tf.RaggedTensor.from_row_lengths(
        tf.range(16, dtype=tf.int64), [2] * 8
    )
    rows = _rows(embedding)
    embedding.enqueue({"ids": ragged}, training=False, name="step0")
    found = embedding.dequeue(name="step0")["ids"]
    means = (rows[0:16:2] + rows[1:16:2]) / 2
    np.testing.assert_allclose(found, means, rtol=1e-6)
    np.testing.assert_array_equal(_evaluate(embedding, 5, "step1"), rows[5:13])


def test_errors_call_a_queue_by_the_name_that_has_it_now():
    embedding = _embedding()
    _steps(embedding, _new_names())
    with pytest.raises(tf.errors.InvalidArgumentError, match="step299"):
        embedding.dequeue(name="step299")
    with pytest.raises(errors.StateError, match="'step0'"):
        embedding.dequeue(name="step0")


def test_a_name_in_use_is_not_forgotten():
    forgotten = []
    names = RecentNames(lambda name: forgotten.append(name) or True)
    with names.using("used"):
        for name in _new_names(100):
            with names.using(name):
                pass
        assert forgotten[:2] == ["step0", "step1"]
        assert "used" not in forgotten
    for name in _new_names(100, "other"):
        with names.using(name):
            pass
    assert "used" in forgotten
    assert len(forgotten) == 201 - 64


def test_names_that_must_stay_do_not_keep_others():
    stay = set(_new_names(100, "stay"))
    forgotten = []

    def forget(name):
        if name in stay:
            return False
        forgotten.append(name)
        return True

    names = RecentNames(forget)
    for name in [*stay, *_new_names(1000)]:
        with names.using(name):
            pass
    assert len(forgotten) >= 1000 - 100 - 64
