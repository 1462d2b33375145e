"""`ShadowVariable` and the lookups through it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors, optimizers

shadow_ops = de.shadow_ops
SHARDS = pytest.mark.parametrize("shards", [1, 3])
IN_FUNCTION = pytest.mark.parametrize("in_function", [False, True])


@pytest.fixture(autouse=True)
def train_mode():
    yield
    de.enable_train_mode()


def shadowed(shards=1, *, initializer=0.0, dim=2, **options):
    v = de.Variable(
        dim=dim, devices=["/CPU:0"] * shards, initializer=initializer
    )
    return v, shadow_ops.ShadowVariable(v, **options)


def keys(*values):
    return tf.constant(values, tf.int64)


def sgd():
    return de.DynamicEmbeddingOptimizer(optimizers.SGD(1.0))


def contents(v):
    found, rows = (x.numpy() for x in v.export())
    return {int(k): row.tolist() for k, row in zip(found, rows, strict=True)}


def test_a_shadow_is_a_trainable_variable_of_its_module():
    module = tf.Module()
    module.dense = tf.Variable(1.0)
    v, module.shadow = shadowed(name="shadow")

    assert isinstance(module.shadow, (tf.Variable, de.TrainableWrapper))
    assert list(module.trainable_variables) == [module.dense, module.shadow]
    assert module.shadow.dtype == tf.float32
    assert module.shadow.ids.dtype == tf.int64
    assert v.get_trainable_by_name("shadow") is module.shadow
    assert v.get_eager_trainable_by_name("shadow") is module.shadow
    assert int(module.shadow.size()) == 0
    assert "shadow" in repr(module.shadow)


def test_any_function_may_look_distinct_ids_up():
    table = tf.constant([[0.0], [1.0], [2.0]])
    asked = []

    def look_up(ids):
        asked.append(ids.numpy().tolist())
        return tf.gather(table, ids)

    rows = shadow_ops.embedding_lookup_unique_base([[2, 1], [2, 2]], 1, look_up)
    assert rows.numpy().tolist() == [[[2], [1]], [[2], [2]]]
    assert asked == [[2, 1]]


@SHARDS
@IN_FUNCTION
def test_all_lookups_of_a_step_train_their_own_rows(shards, in_function):
    v, shadow = shadowed(shards)
    optimizer = sgd()

    def step(first, second):
        with tf.GradientTape() as tape:
            one = shadow_ops.embedding_lookup(shadow, first)
            two = shadow_ops.embedding_lookup(shadow, second)
            loss = tf.reduce_sum(one) + tf.reduce_sum(two)
        gradients = tape.gradient(loss, [shadow])
        optimizer.apply_gradients(zip(gradients, [shadow], strict=True))

    step = tf.function(step) if in_function else step
    step(keys(1, 2), tf.constant([[3, 4, 4]], tf.int64))

    assert contents(v) == {1: [-1, -1], 2: [-1, -1], 3: [-1, -1], 4: [-2, -2]}
    last = ([0], (0, 2)) if in_function else ([1, 3], (1, 3, 2))
    assert shadow.ids.shape.rank is None
    assert (
        list(shadow.ids.numpy().shape),
        shadow.read_value(False).shape,
    ) == last


def test_the_shape_of_the_ids_is_known_while_a_function_is_traced():
    _, shadow = shadowed()
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64)])
    def look_up(ids):
        rows = shadow_ops.embedding_lookup(shadow, ids)
        shapes.append(rows.shape.as_list())
        return rows

    look_up(tf.zeros([4, 3], tf.int64))
    assert shapes == [[None, 3, 2]]


def test_a_function_may_take_the_shadow_and_be_called_under_a_tape():
    v, shadow = shadowed()
    optimizer = sgd()

    @tf.function
    def loss(shadow, ids):
        return tf.reduce_sum(shadow_ops.embedding_lookup(shadow, ids))

    for n in range(3):
        optimizer.minimize(lambda n=n: loss(shadow, keys(n, 7)), [shadow])

    assert contents(v) == {
        0: [-1, -1],
        1: [-1, -1],
        2: [-1, -1],
        7: [-3, -3],
    }


def test_two_shadows_of_a_variable_have_gradients_of_their_own():
    v, first = shadowed()
    second = shadow_ops.ShadowVariable(v, name="second")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(shadow_ops.embedding_lookup(first, [1]))
        loss += tf.reduce_sum(shadow_ops.embedding_lookup(second, [2]))
    one, two, both = tape.gradient(loss, [first, second, v])
    assert one.indices.numpy().tolist() == [1]
    assert two.indices.numpy().tolist() == [2]
    assert sorted(both.indices.numpy()) == [1, 2]


def test_reading_the_value_again_is_a_lookup_too():
    _, shadow = shadowed()
    shadow._reset_ids(keys(5))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(3 * shadow.read_value())
        loss += tf.reduce_sum(shadow.read_value(do_prefetch=False))
    gradient = tape.gradient(loss, shadow)
    assert gradient.indices.numpy().tolist() == [5]
    assert gradient.values.numpy().tolist() == [[3, 3]]


@pytest.mark.parametrize("who", ["variable", "shadow"])
def test_what_is_not_trainable_has_no_gradient(who):
    v = de.Variable(dim=1, trainable=who != "variable")
    shadow = shadow_ops.ShadowVariable(v, trainable=who != "shadow")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(shadow_ops.embedding_lookup(shadow, [1]))
    assert tape.gradient(loss, shadow) is None
    assert not shadow.trainable


def test_the_value_may_be_changed_and_written_back():
    v, shadow = shadowed()
    rows = shadow_ops.embedding_lookup(shadow, [1, 2])
    shadow.assign(rows + 5.0)
    shadow.update_op()
    assert contents(v) == {1: [5, 5], 2: [5, 5]}


def test_a_bp_v2_variable_takes_the_difference():
    v = de.Variable(dim=1, bp_v2=True)
    v.upsert([1], [[10.0]])
    shadow = shadow_ops.ShadowVariable(v)
    rows = shadow_ops.embedding_lookup(shadow, [1, 2])
    shadow.assign(rows + 5.0)
    v.upsert([1], [[100.0]])  # Someone else came between.

    with pytest.raises(ValueError, match="needs `v0`"):
        shadow.update_op()
    shadow.update_op(v0=rows)

    assert contents(v) == {1: [105], 2: [5]}


def test_a_restrict_policy_is_told_of_what_is_written_back():
    v = de.Variable(dim=1, restrict_policy=de.FrequencyRestrictPolicy)
    shadow = shadow_ops.ShadowVariable(v)
    for ids in ([1, 2], [2, 3], [2, 3]):
        shadow_ops.embedding_lookup(shadow, ids)
        shadow.update_op()
    v.restrict(2, trigger=2)
    assert sorted(contents(v)) == [2, 3]


def test_long_rows_are_scaled_to_max_norm():
    v, shadow = shadowed(max_norm=1.0)
    v.upsert([1, 2], [[3.0, 4.0], [0.3, 0.4]])
    for mode in (de.enable_train_mode, de.enable_inference_mode):
        mode()
        rows = shadow_ops.embedding_lookup(shadow, [1, 2])
        np.testing.assert_allclose(rows, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-6)


def test_inference_mode_writes_no_buffer_and_has_no_gradient():
    v, shadow = shadowed()
    v.upsert([1], [[1.0, 1.0]])
    assert de.get_model_mode() == de.ModelMode.TRAIN
    de.enable_inference_mode()
    assert de.get_model_mode() == "inference"

    with tf.GradientTape() as tape:
        rows = shadow_ops.embedding_lookup(shadow, [1])
    assert tape.gradient(tf.reduce_sum(rows), shadow) is None
    assert rows.numpy().tolist() == [[1, 1]]
    assert shadow.ids.numpy().tolist() == []


def test_threads_may_look_up_through_one_shadow():
    v, shadow = shadowed(dim=1)
    v.upsert(range(100), np.arange(100, dtype=np.float32)[:, None])
    wrong = []

    def look_up(n):
        ids = np.arange(n, n + 10 + n % 3)
        for _ in range(50):
            rows = shadow_ops.embedding_lookup(shadow, ids).numpy()[:, 0]
            if rows.tolist() != ids.tolist():
                wrong.append(rows)

    threads = [threading.Thread(target=look_up, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sparse_lookups_take_a_shadow():
    v, shadow = shadowed()
    v.upsert([2, 5], np.ones([2, 2], np.float32))
    ids = tf.SparseTensor([[0, 2], [1, 5], [1, 6]], keys(2, 5, 5), [2, 7])
    with tf.GradientTape() as tape:
        out = de.safe_embedding_lookup_sparse(shadow, ids, combiner="sum")
        loss = tf.reduce_sum(out)
    assert out.numpy().tolist() == [[1, 1], [2, 2]]
    gradient = tape.gradient(loss, shadow)
    assert gradient.indices.numpy().tolist() == [2, 5]
    assert gradient.values.numpy().tolist() == [[1, 1], [2, 2]]


def test_the_table_alone_is_in_a_checkpoint(tmp_path):
    v, shadow = shadowed()
    v.upsert([1], [[1.0, 2.0]])
    shadow_ops.embedding_lookup(shadow, [1])
    saved = tf.train.Checkpoint(shadow=shadow).save(tmp_path / "c")
    names = [name for name, _ in tf.train.list_variables(saved)]
    assert not any("ids" in name or "rows" in name for name in names)

    other, shadow = shadowed()
    tf.train.Checkpoint(shadow=shadow).restore(saved)
    assert contents(other) == {1: [1, 2]}


def test_a_saved_model_looks_rows_up_through_a_shadow(tmp_path):
    module = tf.Module()
    module.v, module.shadow = shadowed()
    module.v.upsert([1], [[1.0, 2.0]])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(ids):
        return shadow_ops.embedding_lookup(module.shadow, ids)

    module.serve = serve
    shadow_ops.embedding_lookup(module.shadow, keys(1, 2))
    tf.saved_model.save(module, str(tmp_path))

    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.serve(keys(1, 9)).numpy().tolist() == [[1, 2], [0, 0]]


def test_a_saved_model_may_read_the_value_of_a_shadow(tmp_path):
    module = tf.Module()
    module.v, module.shadow = shadowed()
    shadow_ops.embedding_lookup(module.shadow, keys(1, 2))
    module.value = tf.function(module.shadow.value, input_signature=[])
    tf.saved_model.save(module, str(tmp_path))

    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.value().shape == (0, 2)
    assert module.shadow.value().shape == (2, 2)


def test_a_shadow_may_keep_its_ids_in_a_variable_that_is_given():
    v = de.Variable(dim=1)
    ids = tf.Variable(
        tf.zeros([0], tf.int64), shape=tf.TensorShape(None), trainable=False
    )
    shadow = shadow_ops.ShadowVariable(v, ids=ids)
    shadow_ops.embedding_lookup(shadow, [7])
    assert ids.numpy().tolist() == [7]


def test_slots_follow_the_ids_of_their_shadow():
    (_, shadow), (_, slot) = shadowed(), shadowed()
    shadow._track_optimizer_slots([slot, slot])
    shadow._reset_ids(keys(3))
    assert slot.ids.numpy().tolist() == [3]
    with pytest.raises(TypeError, match="must be TrainableWrappers"):
        shadow._track_optimizer_slots([tf.Variable(1.0)])


@pytest.mark.parametrize("name", ["sparse_read", "gather_nd"])
def test_methods_of_dense_variables_are_not_there(name):
    _, shadow = shadowed()
    with pytest.raises(AttributeError, match=name):
        getattr(shadow, name)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda v, s: shadow_ops.ShadowVariable(tf.Variable(1.0)),
            TypeError,
            "must be a tfembed Variable",
        ),
        (
            lambda v, s: shadow_ops.ShadowVariable(v, ids=[1]),
            TypeError,
            "`ids` of a ShadowVariable",
        ),
        (
            lambda v, s: shadow_ops.embedding_lookup(s, tf.constant([1])),
            ValueError,
            "int64",
        ),
        (
            lambda v, s: shadow_ops.embedding_lookup(v, [1]),
            TypeError,
            "must be a ShadowVariable",
        ),
        (
            lambda v, s: shadow_ops.embedding_lookup_unique(s, [1], 3),
            ValueError,
            "`embedding_size` must be",
        ),
    ],
)
def test_arguments_that_are_not_allowed_are_refused(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call(*shadowed())
    assert isinstance(caught.value, errors.TfembedError)


def test_shadows_are_made_in_eager_mode():
    v = de.Variable(dim=1)

    @tf.function
    def make():
        shadow_ops.ShadowVariable(v)

    with pytest.raises(NotImplementedError, match="eager mode only"):
        make()
    with (
        tf.Graph().as_default(),
        pytest.raises(NotImplementedError, match="eager mode only"),
    ):
        shadow_ops.ShadowVariable(v)


def test_an_export_has_no_rows_of_a_lookup_and_leaves_the_shadow_alone(
    tmp_path,
):
    class Served(tf.Module):
        def __init__(self):
            self.table = de.Variable(dim=2, initializer=0.5, name="table")
            self.rows = de.shadow_ops.ShadowVariable(self.table, "rows")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def __call__(self, ids):
            return de.shadow_ops.embedding_lookup(self.rows, ids)

    module = Served()
    keys = tf.constant([3, 1, 3], tf.int64)
    de.shadow_ops.embedding_lookup(module.rows, keys)

    tf.saved_model.save(module, str(tmp_path))

    assert module.rows.ids.numpy().tolist() == [3, 1, 3]
    value = module.rows.read_value(do_prefetch=False)
    assert value.numpy().tolist() == [[0.5, 0.5]] * 3
    saved = tf.train.load_checkpoint(str(tmp_path / "variables" / "variables"))
    shapes = saved.get_variable_to_shape_map()
    found = {k: shapes[k][0] for k in shapes if k.startswith("rows/")}
    assert found == dict.fromkeys(found, 0)
    assert len(found) == 3
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded(keys).numpy().tolist() == [[0.5, 0.5]] * 3
