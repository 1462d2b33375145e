"""Every way in which TensorFlow and Keras record a gradient.

Each is a function of a `Table` that looks `IDS` up, differentiates a loss and takes
a step. It runs in eager mode and inside of a tf.function.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from gradients.tables import ASKED, DIM, IDS

SCALE = np.array([1.0, -2.0], np.float32)
WAYS = {}


def way(name):
    def note(step):
        WAYS[name] = step
        return step

    return note


def ids():
    return tf.constant(IDS, tf.int64)


def loss_of(rows):
    """A loss whose gradient depends on the rows, their columns and repeats."""
    return tf.reduce_sum((rows - 0.5) ** 2 * SCALE)


class Recorded:
    """A tape, the table that it is for, and the rows that came out."""

    def __init__(self, table, **options):
        self.table, self.found = table, []
        self.tape = tf.GradientTape(**options)

    def __enter__(self):
        self.tape.__enter__()
        return self

    def __exit__(self, *error):
        return self.tape.__exit__(*error)

    def rows(self, rows):
        """The rows that lookups gave: a source, where the table takes rows."""
        if self.table.takes_rows:
            self.tape.watch(rows)
            self.found.append(rows)
        return rows

    def loss(self, rows):
        return loss_of(self.rows(rows))

    @property
    def sources(self):
        return self.found if self.table.takes_rows else self.table.sources

    def gradients(self, loss, **options):
        return self.tape.gradient(loss, self.sources, **options)

    def apply(self, loss, **options):
        self.table.apply(self.gradients(loss, **options))


def plainly(table, look_up):
    """A step by a tape around `look_up`."""
    with Recorded(table) as tape:
        loss = tape.loss(look_up(ids()))
    tape.apply(loss)


@way("tape")
def tape(table):
    plainly(table, table.look_up)


@way("tape, two lookups")
def two_lookups(table):
    with Recorded(table) as tape:
        loss = tape.loss(table.look_up(ids()))
        loss += 2.0 * tape.loss(table.look_up(tf.constant(ASKED[1], tf.int64)))
    tape.apply(loss)


@way("persistent tape")
def persistent(table):
    with Recorded(table, persistent=True) as tape:
        loss = tape.loss(table.look_up(ids()))
    if not hasattr(table, "layer") or hasattr(table, "v"):
        tape.gradients(loss)  # A DistributedEmbedding would move twice.
    tape.apply(loss)


@way("tape.watch, watch_accessed_variables=False")
def watched(table):
    with Recorded(table, watch_accessed_variables=False) as tape:
        if not table.takes_rows:
            tape.tape.watch(table.sources)
        loss = tape.loss(table.look_up(ids()))
    tape.apply(loss)


@way("unconnected_gradients=ZERO, connected")
def zero_connected(table):
    with Recorded(table) as tape:
        loss = tape.loss(table.look_up(ids()))
    tape.apply(loss, unconnected_gradients=tf.UnconnectedGradients.ZERO)


@way("unconnected_gradients=ZERO, not connected")
def zero_unconnected(table):
    with Recorded(table) as tape:
        tape.rows(table.look_up(ids()))
        other = tf.constant(1.0)
        tape.tape.watch(other)
        loss = other * 2.0
    tape.apply(loss, unconnected_gradients=tf.UnconnectedGradients.ZERO)


@way("output_gradients")
def output_gradients(table):
    with Recorded(table) as tape:
        rows = tape.rows(table.look_up(ids()))
        twice = rows * rows
    tape.apply(twice, output_gradients=tf.ones_like(twice) * SCALE)


@way("tape.stop_recording around another lookup")
def stopped(table):
    with Recorded(table) as tape:
        with tape.tape.stop_recording():
            constant = tf.reduce_sum(table.look_up(ids()))
        rows = tape.rows(table.look_up(ids()))
        loss = loss_of(rows) * constant / 16.0
    tape.apply(loss)


@way("nested tapes: a penalty on the rows' gradient")
def penalty(table):
    with Recorded(table) as outer:
        rows = outer.rows(table.look_up(ids()))
        with tf.GradientTape() as inner:
            inner.watch(rows)
            loss = tf.reduce_sum(rows**3)
        penalty = tf.reduce_sum(inner.gradient(loss, rows) ** 2) / 16.0
    outer.apply(penalty)


@way("nested tapes: the gradient of a table's gradient")
def second_order(table):
    with Recorded(table) as outer:
        with Recorded(table) as inner:
            rows = table.look_up(ids())
            outer.rows(rows)
            loss = tf.reduce_sum(inner.rows(rows) ** 3)
        (gradient,) = inner.gradients(loss)
        gradient = getattr(gradient, "values", gradient)
        penalty = tf.reduce_sum(gradient**2) / 16.0
    outer.apply(penalty)


@way("tape around a tf.function")
def function(table):
    plainly(table, tf.function(table.look_up))


@way("tape around a tf.function that calls another")
def functions(table):
    inner = tf.function(table.look_up)
    plainly(table, tf.function(lambda ids: inner(ids) + 0.0))


@way("tf.recompute_grad")
def recomputed(table):
    plainly(table, tf.recompute_grad(table.look_up))


@way("tf.recompute_grad, ids as a closure")
def recomputed_closure(table):
    look_up = tf.recompute_grad(lambda zero: zero + table.look_up(ids()))
    plainly(table, lambda ids: look_up(tf.constant(0.0)))


@way("tf.recompute_grad around another")
def recomputed_twice(table):
    inner = tf.recompute_grad(table.look_up)
    plainly(table, tf.recompute_grad(lambda ids: inner(ids) + 0.0))


@way("tf.recompute_grad around a tf.function")
def recomputed_function(table):
    plainly(table, tf.recompute_grad(tf.function(table.look_up)))


@way("tape around a tf.function of tf.recompute_grad")
def function_of_recomputed(table):
    plainly(table, tf.function(tf.recompute_grad(table.look_up)))


def with_gradient(look_up, change=lambda gradient: gradient):
    """`look_up` with a gradient of its own, made by a tape inside."""

    @tf.custom_gradient
    def found(ids):
        with tf.GradientTape(persistent=True) as tape:
            rows = look_up(ids)

        def gradient(upstream, variables=None):
            changed = tape.gradient(
                rows, variables or [], output_gradients=2.0 * upstream
            )
            return tf.zeros_like(ids), [change(one) for one in changed]

        return rows, gradient

    return found


@way("tf.custom_gradient")
def custom(table):
    plainly(table, with_gradient(table.look_up))


def _halved(gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values / 2.0, gradient.indices, gradient.dense_shape
        )
    return gradient / 2.0


@way("tf.custom_gradient that changes the table's gradient")
def custom_changed(table):
    plainly(table, with_gradient(table.look_up, _halved))


@way("tf.custom_gradient without `variables`")
def custom_without_variables(table):
    @tf.custom_gradient
    def found(ids):
        return table.look_up(ids), lambda upstream: tf.zeros_like(ids)

    plainly(table, found)


@way("tf.grad_pass_through")
def passed_through(table):
    def found(ids):
        rows = table.look_up(ids)
        return rows + tf.grad_pass_through(tf.square)(rows)

    plainly(table, found)


@way("keras.remat")
def remat(table):
    plainly(table, keras.remat(table.look_up))


@way("keras.RematScope")
def remat_scope(table):
    with keras.RematScope(mode="full"):
        plainly(table, table.look_up)


def accumulated(table, look_up):
    """A step of dense SGD by forward mode, with a tangent for each source."""
    with Recorded(table) as tape:
        rows = tape.rows(table.look_up(ids())) if table.takes_rows else None
    sources = tape.sources
    tangents = [
        tf.ones_like(s) if table.takes_rows else tf.ones(table.tangent_shape)
        for s in sources
    ]
    with tf.autodiff.ForwardAccumulator(sources, tangents) as accumulator:
        loss = loss_of(look_up(ids()) if rows is None else rows)
    slope = accumulator.jvp(loss)
    table.apply([slope * tf.ones_like(tangent) for tangent in tangents])


@way("tf.autodiff.ForwardAccumulator")
def forward(table):
    accumulated(table, table.look_up)


@way("tf.autodiff.ForwardAccumulator around a tf.function")
def forward_function(table):
    accumulated(table, tf.function(table.look_up))


@way("tf.gradients")
def tf_gradients(table):
    rows = table.look_up(ids())
    sources = [rows] if table.takes_rows else table.sources
    table.apply(tf.gradients(loss_of(rows), sources))


@way("tape.jacobian")
def jacobian(table):
    with Recorded(table) as tape:
        rows = tape.rows(table.look_up(ids()))
        sums = tf.reduce_sum(rows**2, 0)
    found = tape.tape.jacobian(sums, tape.sources)
    table.apply([tf.reduce_sum(one, 0) for one in found])


@way("tape.jacobian of a tf.function differentiated before")
def jacobian_again(table):
    look_up = tf.function(table.look_up)
    plainly(table, look_up)
    with Recorded(table) as tape:
        rows = tape.rows(look_up(ids()))
        sums = tf.reduce_sum(rows**2, 0)
    found = tape.tape.jacobian(sums, tape.sources)
    table.apply([tf.reduce_sum(one, 0) for one in found])


@way("tape around tf.cond")
def cond(table):
    def found(ids):
        return tf.cond(
            tf.size(ids) > 2,
            lambda: table.look_up(ids),
            lambda: 3.0 * table.look_up(ids),
        )

    plainly(table, found)


@way("tape around tf.cond that calls a tf.function")
def cond_function(table):
    look_up = tf.function(table.look_up)

    def found(ids):
        zeros = tf.zeros([4, DIM])
        return tf.cond(tf.size(ids) > 2, lambda: look_up(ids), lambda: zeros)

    plainly(table, found)


@way("tape around tf.cond, a lookup in one branch")
def cond_one_branch(table):
    def found(ids):
        zeros = tf.zeros([4, DIM])
        return tf.cond(
            tf.size(ids) > 2, lambda: table.look_up(ids), lambda: zeros
        )

    plainly(table, found)


@way("tape around tf.cond that calls a tf.function differentiated before")
def cond_function_again(table):
    look_up = tf.function(table.look_up)

    def found(ids):
        zeros = tf.zeros([4, DIM])
        return tf.cond(tf.size(ids) > 2, lambda: look_up(ids), lambda: zeros)

    plainly(table, look_up)
    plainly(table, found)


@way("tape around tf.cond that calls functions differentiated before")
def cond_functions_again(table):
    inner = tf.function(table.look_up)
    look_up = tf.function(lambda ids: inner(ids) + 0.0)

    def found(ids):
        zeros = tf.zeros([4, DIM])
        return tf.cond(tf.size(ids) > 2, lambda: look_up(ids), lambda: zeros)

    plainly(table, look_up)
    plainly(table, found)


@way("tape around tf.cond inside of a tf.function that calls another")
def cond_in_function(table):
    inner = tf.function(table.look_up)

    @tf.function
    def look_up(ids):
        zeros = tf.zeros([4, DIM])
        return tf.cond(tf.size(ids) > 2, lambda: inner(ids), lambda: zeros)

    plainly(table, lambda ids: look_up(ids) * 2.0)


@way("tape around tf.switch_case that calls a tf.function")
def switch_case_function(table):
    look_up = tf.function(table.look_up)

    def found(ids):
        branches = [lambda: tf.zeros([4, DIM]), lambda: look_up(ids)]
        return tf.switch_case(tf.size(ids) - 3, branches)

    plainly(table, found)


@way("tape around tf.map_fn that calls a tf.function")
def map_fn_function(table):
    look_up = tf.function(table.look_up)

    def found(ids):
        rows = tf.map_fn(
            lambda one: look_up(one[tf.newaxis]),
            ids,
            fn_output_signature=tf.float32,
        )
        return tf.reshape(rows, [4, DIM])

    plainly(table, found)


@way("tape around tf.switch_case")
def switch_case(table):
    def found(ids):
        return tf.switch_case(
            tf.size(ids) - 3,
            [
                lambda: tf.zeros([4, DIM]),
                lambda: 3.0 * table.look_up(ids),
            ],
        )

    plainly(table, found)


@way("tape inside of tf.cond")
def inside_cond(table):
    def step():
        plainly(table, table.look_up)
        return 1

    tf.cond(tf.size(ids()) > 2, step, lambda: 0)


def _twice_in_a_loop(look_up):
    """Returns the lookup whose rows two rounds of a loop add up."""

    def found(ids):
        def body(i, total):
            return i + 1, total + look_up(ids)

        start = (0, tf.zeros([4, DIM]))
        return tf.while_loop(lambda i, _: i < 2, body, start)[1]

    return found


@way("tape around tf.while_loop")
def while_loop(table):
    plainly(table, _twice_in_a_loop(table.look_up))


@way("tape around tf.while_loop that calls a tf.function")
def while_loop_function(table):
    look_up = tf.function(table.look_up)
    plainly(table, _twice_in_a_loop(look_up))


@way("tape around tf.while_loop that calls a tf.function differentiated before")
def while_loop_function_again(table):
    look_up = tf.function(table.look_up)
    plainly(table, look_up)
    plainly(table, _twice_in_a_loop(look_up))


@way("tape inside of tf.while_loop")
def inside_while_loop(table):
    def body(i):
        plainly(table, table.look_up)
        return [i + 1]

    tf.while_loop(lambda i: i < 2, body, [0])


@way("tape around tf.map_fn")
def map_fn(table):
    def found(ids):
        rows = tf.map_fn(
            lambda one: table.look_up(one[tf.newaxis]),
            ids,
            fn_output_signature=tf.float32,
        )
        return tf.reshape(rows, [4, DIM])

    plainly(table, found)


@way("tape around tf.scan")
def scan(table):
    def found(ids):
        rows = tf.scan(
            lambda _, one: table.look_up(one[tf.newaxis]),
            ids,
            initializer=tf.zeros([1, DIM]),
        )
        return tf.reshape(rows, [4, DIM])

    plainly(table, found)


@way("tape around tf.vectorized_map")
def vectorized_map(table):
    def found(ids):
        rows = tf.vectorized_map(
            lambda one: table.look_up(one[tf.newaxis]), ids
        )
        return tf.reshape(rows, [4, DIM])

    plainly(table, found)
