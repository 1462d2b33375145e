"""Keys and shapes of gradients that callers make themselves."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tests.dynamic_embedding.graph_programs import graph_and_session, start
from tests.dynamic_embedding.optimizer_makers import V1, K
from tests.dynamic_embedding.plain_sgd import wrapped
from tfembed import errors

FUSED = pytest.mark.parametrize(
    "opt", [lambda: K.SGD(1.0), lambda: K.RMSprop(1.0)], ids=["fused", "rows"]
)
TRACED = pytest.mark.parametrize("traced", [False, True])
SHARDS = pytest.mark.parametrize("shards", [1, 2])


def variable(key_dtype=tf.int64, shards=1, name="b", **options):
    options = {"dim": 2, "devices": ["/CPU:0"] * shards, **options}
    return de.Variable(key_dtype, name=name, **options)


def stepper(v, opt, traced, *, keys, values=None):
    """A step of a table and a dense variable, whose shapes a trace may know not.

    Args:
      keys, values: what is known of them there.
    """
    optimizer, other = wrapped(opt()), variable(name="other")
    dense = tf.Variable([0.0])
    one = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1], tf.int64))

    def step(given, rows):
        gradient = tf.IndexedSlices(rows, given)
        optimizer.apply_gradients(
            [(one, other), (gradient, v), (tf.ones([1]), dense)]
        )

    if traced:
        step = tf.function(
            step, input_signature=[keys, values or tf.TensorSpec([None, 2])]
        )
    return step, lambda: (
        int(v.size()),
        int(other.size()),
        float(dense[0]),
        int(optimizer.iterations),
    )


UNTOUCHED = (0, 0, 0.0, 0)


@FUSED
@TRACED
@SHARDS
def test_int64_keys_that_an_int32_table_cannot_hold_change_nothing(
    opt, traced, shards
):
    v = variable(tf.int32, shards)
    step, state = stepper(v, opt, traced, keys=tf.TensorSpec([None], tf.int64))
    expected = tf.errors.InvalidArgumentError if traced else errors.DtypeError
    for key in (2**32 + 5, 2**31, -(2**31) - 1):
        with pytest.raises(expected, match=r"(?s)\Wb\W.*int32"):
            step(tf.constant([3, key], tf.int64), tf.ones([2, 2]))
    assert state() == UNTOUCHED


@FUSED
def test_constant_keys_of_a_function_are_refused_when_it_is_traced(opt):
    v, optimizer = variable(tf.int32), wrapped(opt())

    @tf.function
    def step():
        keys = tf.constant([2**32 + 5], tf.int64)
        optimizer.apply_gradients(
            [(tf.IndexedSlices(tf.ones([1, 2]), keys), v)]
        )

    with pytest.raises(errors.DtypeError, match="'b' must be int32"):
        step()
    assert int(v.size()) == 0


@FUSED
@TRACED
@pytest.mark.parametrize(
    ("key_dtype", "keys"),
    [
        (tf.int64, ["a"]),
        (tf.int64, tf.constant([1.0])),
        (tf.int32, tf.constant([1], tf.uint64)),
        (tf.string, tf.constant([1], tf.int64)),
    ],
)
def test_keys_of_another_dtype_change_nothing(opt, traced, key_dtype, keys):
    keys, v = tf.convert_to_tensor(keys), variable(key_dtype)
    step, state = stepper(
        v, opt, traced, keys=tf.TensorSpec([None], keys.dtype)
    )
    with pytest.raises(errors.DtypeError, match="Keys of table 'b' must be"):
        step(keys, tf.ones([1, 2]))
    assert state() == UNTOUCHED


@FUSED
@TRACED
@SHARDS
@pytest.mark.parametrize(
    ("of_table", "given"), [(tf.int64, tf.int32), (tf.int32, tf.int64)]
)
def test_integers_of_the_other_width_train_where_they_fit(
    opt, traced, shards, of_table, given
):
    v = variable(of_table, shards)
    step, _ = stepper(v, opt, traced, keys=tf.TensorSpec([None], given))
    step(tf.constant([5, tf.int32.min, tf.int32.max], given), tf.ones([3, 2]))
    assert sorted(v.export()[0].numpy()) == [tf.int32.min, 5, tf.int32.max]


@FUSED
def test_lists_train_as_tensors_do(opt):
    v = variable(tf.int32)
    gradient = tf.IndexedSlices([[1.0, 1.0]], [7])
    wrapped(opt()).apply_gradients([(gradient, v)])
    assert v.export()[0].numpy().tolist() == [7]
    with pytest.raises(errors.DtypeError, match="'b'"):
        gradient = tf.IndexedSlices([[1.0, 1.0]], [2**32])
        wrapped(opt()).apply_gradients([(gradient, v)])


WRONG = [
    ([1, 2], [1, 4]),
    ([2], [2, 1]),
    ([2], [4, 1]),
    ([2], [2]),
    ([4], [2, 2]),
    ([], [2, 2]),
]


@FUSED
@pytest.mark.parametrize("traced", ["no", "ranks", "nothing"])
@pytest.mark.parametrize(("of_keys", "of_values"), WRONG)
def test_values_of_another_shape_change_nothing(
    opt, traced, of_keys, of_values
):
    known = traced == "ranks"
    v = variable(shards=2)
    step, state = stepper(
        v,
        opt,
        traced != "no",
        keys=tf.TensorSpec([None] * len(of_keys) if known else None, tf.int64),
        values=tf.TensorSpec([None] * len(of_values) if known else None),
    )
    ranks_fit = len(of_keys) + 1 == len(of_values)
    at_run_time = traced == "nothing" or (known and ranks_fit)
    expected = tf.errors.InvalidArgumentError if at_run_time else ValueError
    with pytest.raises(expected, match=r"(?s)\Wb\W.*shape") as error:
        step(tf.ones(of_keys, tf.int64), tf.ones(of_values))
    if not at_run_time:
        assert isinstance(error.value, errors.ArgumentError)
    if traced == "no":
        assert f"{tf.TensorShape(of_keys)}" in str(error.value)
        assert f"{tf.TensorShape(of_values)}" in str(error.value)
    assert state() == UNTOUCHED


@FUSED
@TRACED
@pytest.mark.parametrize("of_keys", [[], [0], [2, 1, 2]])
def test_keys_of_any_shape_train(opt, traced, of_keys):
    v = variable(shards=2)
    step, state = stepper(
        v,
        opt,
        traced,
        keys=tf.TensorSpec(None, tf.int64),
        values=tf.TensorSpec(None),
    )
    keys = tf.reshape(tf.range(tf.size(tf.zeros(of_keys))), of_keys)
    step(tf.cast(keys, tf.int64), tf.ones([*of_keys, 2]))
    assert state()[0] == int(tf.size(keys))


@FUSED
@pytest.mark.parametrize("key_dtype", [tf.int64, tf.int32, tf.string])
@pytest.mark.parametrize("form", ["dense", "ragged", "sparse"])
def test_gradients_of_lookups_pass_where_a_function_knows_no_shape(
    opt, key_dtype, form
):
    v, optimizer = variable(key_dtype, 2), wrapped(opt())

    @tf.function(input_signature=[tf.TensorSpec([None, None], key_dtype)])
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(looked_up(v, ids, form))
            loss += tf.reduce_sum(de.embedding_lookup(v, ids[0], name="more"))
        optimizer.apply_gradients([(tape.gradient(loss, v), v)])

    ids = [["a", "b"]] if key_dtype == tf.string else [[4, -5]]
    step(tf.constant(ids, key_dtype))
    assert int(v.size()) == 2


def looked_up(v, ids, form):
    if form == "dense":
        return de.embedding_lookup(v, ids, name="dense")
    if form == "ragged":
        ragged = tf.RaggedTensor.from_tensor(ids)
        return de.ragged_embedding_ops.embedding_lookup_sparse(v, ragged, None)
    places = tf.where(tf.ones_like(ids, tf.bool))
    shape = tf.shape(ids, tf.int64)
    sparse = tf.SparseTensor(places, tf.gather_nd(ids, places), shape)
    return de.embedding_lookup_sparse(v, sparse, None)


@FUSED
@TRACED
def test_sums_that_are_not_finite_are_not_counted_where_they_are_allowed(
    opt, traced
):
    v, optimizer = variable(), wrapped(opt(), nonfinite="allow")

    def step():
        keys = tf.constant([1, 2], tf.int64)
        rows = tf.constant([[float("nan")] * 2, [1.0, 1.0]])
        optimizer.apply_gradients([(tf.IndexedSlices(rows, keys), v)])

    (tf.function(step) if traced else step)()
    assert int(v.size()) == 2
    assert int(optimizer.nonfinite_rows) == 0


@pytest.mark.parametrize(
    "opt",
    [
        lambda: V1.GradientDescentOptimizer(1.0),
        lambda: V1.MomentumOptimizer(1.0, 0.9),
    ],
    ids=["fused", "rows"],
)
def test_a_session_refuses_keys_and_shapes_before_any_change(opt):
    with graph_and_session() as session:
        v, other = variable(tf.int32), variable(name="other")
        dense = tf.compat.v1.get_variable("dense", initializer=0.0)
        keys = tf.compat.v1.placeholder(tf.int64)
        rows = tf.compat.v1.placeholder(tf.float32)
        one = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1], tf.int64))
        step = wrapped(opt()).apply_gradients(
            [(one, other), (tf.IndexedSlices(rows, keys), v), (1.0, dense)]
        )
        state = [v.size(), other.size(), dense]
        start(session)
        for given in ([[2**32], [[1.0, 1.0]]], [[2], [[1.0] * 4]]):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)'b"):
                session.run(step, dict(zip([keys, rows], given, strict=True)))
        assert session.run(state) == [0, 0, 0.0]
        session.run(step, {keys: [2], rows: [[1.0, 1.0]]})
        assert session.run(state) == [1, 1, -1.0]
