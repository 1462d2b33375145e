"""Batches that wait in a queue, looked up and trained by the queue's own ops."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.ops import batches
from tfembed.ops import grouped, library, step

MODES = pytest.mark.parametrize("run", [lambda f: f, tf.function])
STATIC = pytest.mark.parametrize("static", [True, False])
Refused = tf.errors.InvalidArgumentError
RATE = 0.1
# What travels of a feature, by its kind.
FIELDS = {
    "dense": ["ids"],
    "ragged": ["ids", "rows", "weights"],
    "sparse": ["ids", "rows", "weights", "dense_shape"],
}


def parts(features, *, training=True):
    """A batch as it travels."""
    found = [tf.constant(training)]
    for one in map(batches.tensors, features):
        found += [
            tf.cast(getattr(one, field), tf.int64)
            if field == "dense_shape"
            else getattr(one, field)
            for field in FIELDS[one.kind]
        ]
    return found


def create(label="here", *, most_batches=9, seconds=0.0, **rules):
    return step.create(
        label, most_batches=most_batches, seconds=seconds, **rules
    )


def of_features(features, **changed):
    return {
        "dims": batches.DIMS,
        "kinds": [f.kind for f in features],
        "id_dtypes": [tf.int64] * len(features),
        "batch_sizes": [len(f.bags) for f in features],
        "plans": [batches.plan(f) for f in features],
        **changed,
    }


def look_up(queue, tables, features, **changed):
    attrs = step.step_attrs(**of_features(features, **changed))
    return step.lookup(queue, grouped.handles(tables), attrs)


def update(queues, tables, features, gradients, **changed):
    return step.update(
        queues,
        grouped.handles(tables),
        [],
        gradients,
        step.step_attrs(**of_features(features, **changed)),
        rules=["sgd"] * len(tables),
        learning_rates=tf.fill([len(tables)], RATE),
        nonfinite="skip",
        table_names=[],
    )


@MODES
@STATIC
def test_a_lookup_of_the_queue_is_a_grouped_lookup(static, run):
    features = batches.features()
    tables, queue = batches.make_tables(static), create()
    step.put(queue, parts(features))
    found = run(lambda: look_up(queue, tables, features))()
    expected = grouped.grouped_lookup(
        tables,
        batches.DIMS,
        [batches.tensors(f) for f in features],
        [batches.plan(f) for f in features],
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert step.sizes(queue).numpy().tolist() == [0, 1]


@MODES
@STATIC
def test_an_update_of_the_queues_is_a_grouped_update(static, run):
    features = batches.features()
    gradients = batches.gradients_of(features)
    tables, queues = batches.make_tables(static), [create() for _ in "ab"]
    for queue in queues:
        step.put(queue, parts(features))
        look_up(queue, tables, features)
    counts = run(lambda: update(queues, tables, features * 2, gradients * 2))()
    assert counts.numpy().tolist() == [0, 0]
    expected = batches.make_tables(static)
    grouped.grouped_update(
        expected,
        [],
        batches.DIMS,
        [batches.tensors(f) for f in features] * 2,
        [batches.plan(f) for f in features] * 2,
        gradients * 2,
        rules=["sgd"] * 2,
        learning_rates=[RATE] * 2,
    )
    for t, (a, b) in enumerate(zip(tables, expected, strict=True)):
        np.testing.assert_array_equal(
            batches.read_rows(a, t), batches.read_rows(b, t)
        )
    for queue in queues:
        assert step.sizes(queue).numpy().tolist() == [0, 0]


def test_shapes_are_known_when_a_function_is_traced():
    features = batches.features()
    tables, queue = batches.make_tables(True), create()

    @tf.function
    def run():
        return [one.shape for one in look_up(queue, tables, features)] and 0

    graph = run.get_concrete_function().graph
    (lookup,) = [
        one
        for one in graph.get_operations()
        if one.type == "Tfembed>StepLookup"
    ]
    assert [one.shape.as_list() for one in lookup.outputs] == [
        list(one.shape) for one in batches.gradients_of(features)
    ]


def test_a_bad_batch_is_lost_and_the_next_one_is_looked_up():
    bad = [batches.feature("dense", [[99]], table=0)]
    good = [batches.feature("dense", [[1]], table=0)]
    tables, queue = batches.make_tables(True), create()
    step.put(queue, parts(bad))
    step.put(queue, parts(good))
    with pytest.raises(Refused, match="99"):
        look_up(queue, tables, bad)
    (found,) = look_up(queue, tables, good)
    np.testing.assert_array_equal(found[0], tables[0][1])


@pytest.mark.parametrize(
    "changed",
    [
        {"kinds": ["ragged"]},
        {"kinds": ["sparse"]},
        {"kinds": ["dense"], "batch_sizes": [2]},
        {"id_dtypes": [tf.string]},
    ],
    ids=str,
)
def test_a_batch_of_another_layout_is_refused(changed):
    features = [batches.feature("dense", [[1]], table=0)]
    tables, queue = batches.make_tables(True), create()
    step.put(queue, parts(features))
    with pytest.raises(Refused, match="feature 0"):
        look_up(queue, tables, features, **changed)


def test_a_dense_shape_of_another_rank_is_refused():
    features = [batches.feature("sparse", [[1]], table=0)]
    tables, queue = batches.make_tables(True), create()
    for shape in ([], [1, 1, 1], 1, [[1, 1]]):
        (*given, _) = parts(features)
        step.put(queue, [*given, tf.constant(shape, tf.int64)])
        with pytest.raises(Refused, match="not laid out"):
            look_up(queue, tables, features)


def test_the_columns_of_a_batch_bound_its_indices():
    features = [batches.feature("sparse", [[1, 2]], places=[[0, 4]], table=0)]
    tables, queue = batches.make_tables(True), create()
    for columns in (5, -1):
        (*given, _) = parts(features)
        step.put(queue, [*given, tf.constant([1, columns], tf.int64)])
        look_up(queue, tables, features)
        step.finish(queue, [one.dtype for one in parts(features)])
    (*given, _) = parts(features)
    step.put(queue, [*given, tf.constant([1, 4], tf.int64)])
    with pytest.raises(Refused, match="rows of up to 4 ids"):
        look_up(queue, tables, features)


def test_more_parts_than_features_are_refused():
    features = [batches.feature("dense", [[1]], table=0)]
    tables, queue = batches.make_tables(True), create()
    step.put(queue, parts(features * 2))
    with pytest.raises(Refused, match="not laid out"):
        look_up(queue, tables, features)


@pytest.mark.parametrize(
    "changed",
    [
        {"batch_sizes": [1, 1]},
        {"batch_sizes": [-1]},
        {"plans": [grouped.FeaturePlan(7, "sum")]},
        {"dims": [3]},
    ],
    ids=str,
)
def test_attributes_that_do_not_fit_are_refused(changed):
    features = [batches.feature("dense", [[1]], table=0)]
    tables, queue = batches.make_tables(True), create()
    step.put(queue, parts(features))
    with pytest.raises((Refused, ValueError)):
        look_up(queue, tables, features, **changed)
    assert step.sizes(queue).numpy().tolist() == [1, 0]


def test_an_update_names_the_queue_that_has_no_batch():
    features = [batches.feature("dense", [[1]], table=0)]
    tables, queues = batches.make_tables(True), [create(one) for one in "ab"]
    step.put(queues[0], parts(features))
    look_up(queues[0], tables, features)
    gradients = batches.gradients_of(features) * 2
    with pytest.raises(Refused, match="no dequeued batch b"):
        update(queues, tables, features * 2, gradients)
    np.testing.assert_array_equal(tables[0], batches.rows(0))


def test_a_batch_that_does_not_begin_with_one_bool_is_refused():
    queue = create()
    for first in (tf.constant(1, tf.int64), tf.constant([True])):
        with pytest.raises(Refused, match="must be one bool"):
            step.put(queue, [first])
        with pytest.raises(Refused, match="must be one bool"):
            step.hold(queue, [first])
    assert step.sizes(queue).numpy().tolist() == [0, 0]


@pytest.mark.parametrize("dtypes", [[tf.bool, tf.int64], [tf.int64]])
def test_a_batch_of_other_parts_is_not_taken_for_what_is_asked_for(dtypes):
    queue = create()
    step.put(queue, [tf.constant(True)])
    with pytest.raises(Refused, match="the op is told of"):
        step.take(queue, dtypes)


@pytest.mark.parametrize("count", [0, 2])
def test_a_handle_that_is_no_scalar_is_refused(count):
    handles = tf.stack([create(), create()])[:count]
    for call in (step.sizes, step.clear):
        with pytest.raises((Refused, ValueError)):
            call(handles)
        with pytest.raises((Refused, ValueError)):
            tf.function(call)(handles)
    tables = tf.stack(batches.make_tables(False))[:count]
    with pytest.raises((Refused, ValueError)):
        library.load().tfembed_table_size(tables)


def test_a_handle_of_something_else_is_refused():
    table = batches.make_tables(False)[0]
    for call in (step.sizes, step.clear):
        with pytest.raises(Refused):
            call(table)
    with pytest.raises(Refused):
        library.load().tfembed_step_sizes(tf.Variable(1.0).handle)


def test_a_queue_with_a_name_is_found_again():
    one, other = (
        library.load().tfembed_step_queue_create(
            "here", most_batches=9, seconds=0.0, shared_name="of_tests"
        )
        for _ in range(2)
    )
    step.put(one, [tf.constant(True)])
    assert step.sizes(other).numpy().tolist() == [1, 0]


def test_a_label_that_is_no_string_is_refused():
    with pytest.raises((Refused, ValueError)):
        create(["a", "b"])
