"""Tables that the workers of a MultiWorkerMirroredStrategy share."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clusters import workers

PROGRAM = """
    import keras
    import tfembed, tfembed.dynamic_embedding as de
    from tfembed import errors

    DIM = 3
    makers = {
        "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
        "AdamByRows": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
        "SGD": lambda: tfembed.SGD(0.1),
    }

    class Program:
        def __init__(self, make, name, **options):
            self.table = de.Variable(dim=DIM, name=name, **options)
            self.small = de.Variable(
                dim=1, key_dtype=tf.int32, value_dtype=tf.bfloat16,
                initializer=0.5, name=name + "_small", **options
            )
            self.optimizer = de.DynamicEmbeddingOptimizer(
                make(), nonfinite="refuse"
            )
            self.dense = tf.Variable(tf.ones([DIM]), name=name + "_dense")
            self.trains_dense = name != "SGD"  # Of tfembed.optimizers.

        def step(self, ids, factor):
            bags = tf.RaggedTensor.from_tensor(
                tf.stack([ids, ids + 2], 1)
            ).to_sparse()
            with tf.GradientTape() as tape:
                rows = de.embedding_lookup(self.table, ids, name="a")
                rows += de.embedding_lookup_unique(
                    self.table, ids + 1, name="b"
                )
                rows *= self.dense
                bag = de.embedding_lookup_sparse(
                    self.table, bags, None, combiner="mean", name="c"
                )
                small = de.embedding_lookup(
                    self.small, tf.cast(ids % 3, tf.int32), name="d"
                )
                loss = factor * tf.reduce_sum(rows ** 2) / 8
                loss += tf.reduce_sum(bag) / 8
                loss += tf.reduce_sum(tf.cast(small, tf.float32)) / 8
            sources = [self.table, self.small]
            if self.trains_dense:
                sources.append(self.dense)
            gradients = tape.gradient(loss, sources)
            self.optimizer.apply_gradients(zip(gradients, sources))

        def rows(self):
            found = {}
            for table in (self.table, self.small):
                keys, rows = table.export()
                rows = tf.cast(rows, tf.float32)
                found[table.name] = {
                    str(k): r for k, r in
                    zip(keys.numpy().tolist(), rows.numpy().tolist())
                }
            return found, self.dense.numpy().tolist()

    rng = np.random.default_rng(7)
    batches = [
        [rng.integers(-5, 20, rng.integers(1, 9)) for _ in range(workers)]
        for _ in range(5)
    ]
    none = np.zeros([0], np.int64)
    batches.insert(1, [none] * workers)                       # All are empty.
    batches.insert(2, [none] * (workers - 1) + [np.arange(4)])  # All but one.
    batches.insert(3, [np.arange(4) * workers] * workers)     # One owner.
    spec = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float32)]

    saw["trained"] = {}
    for name in sys.argv[3].split():
        make = makers[name]
        with strategy.scope():
            shared = Program(make, name)
        traces = []

        @tf.function(input_signature=spec)
        def step(ids, factor):
            traces.append(None)
            strategy.run(shared.step, args=(ids, factor))

        for i, parts in enumerate(batches):
            step(tf.constant(parts[me], tf.int64), 1.0)
            if i == 0:
                traces.clear()  # The first step makes variables.
        strategy.run(shared.step, args=(tf.constant([me], tf.int64), 1.0))
        alone = Program(make, name, devices=["/CPU:0"])
        for parts in [*batches, [[i] for i in range(workers)]]:
            alone.step(tf.constant(np.concatenate(parts), tf.int64), 1.0)
        saw["trained"][name] = {
            "shared": shared.rows(), "alone": alone.rows(),
            "traces": len(traces),
        }

        if name == "SGD":
            # What `save_to_file_system` of each worker wrote, by one process,
            # and by workers who also find the files of another count.
            shared.table.save_to_file_system(
                sys.argv[2], proc_size=workers, proc_rank=me
            )
            shared.table.lookup(tf.constant([me], tf.int64))  # All have saved.
            one = de.Variable(dim=DIM, name=name, devices="/CPU:0")
            with strategy.scope():
                same = de.Variable(dim=DIM, name=name)
                every = de.Variable(dim=DIM, name=name)
            one.load_from_file_system_with_restore_function(sys.argv[2])
            same.load_from_file_system_with_restore_function(
                sys.argv[2], workers, me
            )
            every.load_from_file_system(sys.argv[2], load_entire_dir=True)
            saw["files"] = {
                label: dict(zip(map(str, keys.numpy().tolist()),
                                rows.numpy().tolist()))
                for label, (keys, rows) in {
                    "saved": shared.table.export(), "one": one.export(),
                    "same": same.export(), "every": every.export(),
                }.items()
            }

    # Keras' layers, in steps by hand.
    def layer_and_step(kind, length):
        keras.utils.set_random_seed(3)
        optimizer = keras.optimizers.Adagrad(0.1)
        ids = keras.Input((length,), dtype="int64")
        if kind == "tfembed.keras":
            layer = tfembed.keras.layers.Embedding(
                DIM, key_dtype="int64", name="layer"
            )
        else:
            layer = de.keras.layers.Embedding(DIM, name="layer")
            optimizer = de.DynamicEmbeddingOptimizer(optimizer)
        flat = keras.layers.Flatten()(layer(ids))
        model = keras.Model(ids, keras.layers.Dense(1)(flat))
        weights = model.trainable_variables
        optimizer.build(weights)
        def step(batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(batch) - 1.0) ** 2) / 8
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        def rows():
            table = layer.params if kind == "de.keras" else layer.table
            keys, values = table.export()
            return dict(zip(map(str, keys.numpy().tolist()),
                            values.numpy().tolist()))
        return step, rows
    saw["layers"] = {}
    for kind in sys.argv[4].split():
        with strategy.scope():
            shared_step, shared_of = layer_and_step(kind, 2)
        step = tf.function(
            lambda ids: strategy.run(shared_step, args=(ids,)),
            reduce_retracing=True,
        )
        alone_step, alone_of = layer_and_step(kind, 2)
        for parts in batches[4:]:
            pairs = [np.stack([part, part + 3], 1) for part in parts]
            step(tf.constant(pairs[me], tf.int64))
            alone_step(tf.constant(np.concatenate(pairs), tf.int64))
        saw["layers"][kind] = {"shared": shared_of(), "alone": alone_of()}

    # A gradient that is not finite, of the last worker alone.
    with strategy.scope():
        shared = Program(makers["Adagrad"], "bad")
    step = tf.function(lambda ids, factor: strategy.run(
        shared.step, args=(ids, factor)
    ))
    keys = tf.constant([1, 2, 3], tf.int64)
    step(keys, 1.0)
    before = shared.rows()
    saw["bad"] = failure(
        lambda: step(keys, np.nan if me == workers - 1 else 1.0)
    )
    saw["kept"] = shared.rows() == before
    step(keys, 1.0)
    saw["next"] = shared.rows() != before

    # Rows that are read and written outside of steps.
    with strategy.scope():
        v = de.Variable(dim=2, name="plain", initializer=-1.0)
    keys = tf.constant([[10 * me, 10 * me + 1]], tf.int64)
    v.upsert(keys, tf.fill([1, 2, 2], float(me)))
    every = tf.constant([[0, 1, 10, 11], [2, 3, 12, 13]], tf.int64)
    saw["read"] = {
        "rows": v.lookup(every).numpy().tolist(),
        "there": v.contains(every).numpy().tolist(),
        "item": v[10].numpy().tolist(),
        "in": [11 in v, 12 in v],
        "keys": sorted(v.export()[0].numpy().tolist()),
        "size": int(v.size()),
        "local": tf.function(v.lookup)(every[0]).numpy().tolist(),
    }
    v.remove(tf.constant([0, 11], tf.int64))
    saw["removed"] = v.contains(every).numpy().tolist()

    # Refusals.
    def scoped(make):
        with strategy.scope():
            return make()
    own = de.Variable(dim=3, name="own", devices="/CPU:0")
    def train(table, optimizer=shared.optimizer):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(de.embedding_lookup(table, keys, name="x"))
        gradient = tape.gradient(loss, table)
        optimizer.apply_gradients([(gradient, table)])
    clipping = scoped(lambda: de.DynamicEmbeddingOptimizer(
        keras.optimizers.SGD(0.1, clipnorm=1.0)
    ))
    plain = de.DynamicEmbeddingOptimizer(tfembed.SGD(0.1))
    again = tf.distribute.MultiWorkerMirroredStrategy()
    with again.scope():
        other = de.DynamicEmbeddingOptimizer(tfembed.SGD(0.1))
    saw["refused"] = {
        "own": failure(lambda: strategy.run(lambda: train(own))),
        "outside": failure(lambda: train(v, plain)),
        "twice": failure(lambda: again.run(lambda: train(v, other))),
        "norm": failure(lambda: strategy.run(lambda: train(v, clipping))),
        "accum": failure(lambda: v.accum(every, v[every], v[every],
                                         v.contains(every))),
        "strings": failure(lambda: scoped(
            lambda: de.Variable(tf.string, dim=2, name="s")
        )),
        "save": failure(lambda: tf.train.Checkpoint(v=v).save("/tmp/none/x")),
        "differs": failure(lambda: scoped(
            lambda: de.Variable(dim=2 + me, name="t")
        )),
    }
    end()
"""


@pytest.fixture(
    name="saw",
    scope="module",
    params=[
        (2, "Adagrad AdamByRows SGD", "tfembed.keras de.keras"),
        pytest.param((3, "SGD", "de.keras"), marks=pytest.mark.slow),
    ],
    ids=["2 workers", "3 workers"],
)
def run_program(request, tmp_path_factory):
    """What each worker saw."""
    count, optimizers, layers = request.param
    folder = tmp_path_factory.mktemp("files")
    return workers.run(PROGRAM, count, folder, optimizers, layers)


def test_workers_train_as_one_process_with_all_batches(saw):
    assert "SGD" in saw[0]["trained"]
    for optimizer in saw[0]["trained"]:
        check_trained([one["trained"][optimizer] for one in saw])


def check_trained(found):
    expected, expected_dense = found[0]["alone"]
    for name, rows in expected.items():
        parts = [one["shared"][0][name] for one in found]
        union = {key: row for part in parts for key, row in part.items()}
        assert sum(map(len, parts)) == len(union) == len(rows)
        for worker, part in enumerate(parts):
            assert all(int(key) % len(found) == worker for key in part)
        limit = 1e-2 if name.endswith("_small") else 1e-6  # bfloat16.
        for key, row in rows.items():
            np.testing.assert_allclose(union[key], row, rtol=limit, atol=limit)
    for one in found:
        np.testing.assert_allclose(one["shared"][1], expected_dense, atol=1e-6)
        assert one["traces"] == 0


def test_layers_of_keras_train_as_in_one_process(saw):
    assert "de.keras" in saw[0]["layers"]
    for kind in saw[0]["layers"]:
        found = [one["layers"][kind] for one in saw]
        expected = found[0]["alone"]
        union = {k: row for one in found for k, row in one["shared"].items()}
        assert sum(len(one["shared"]) for one in found) == len(expected)
        for key, row in expected.items():
            np.testing.assert_allclose(union[key], row, atol=1e-6)


def test_files_of_the_workers_are_loaded_by_any_number(saw):
    saved = [one["files"]["saved"] for one in saw]
    union = {key: row for part in saved for key, row in part.items()}
    for worker, one in enumerate(saw):
        assert one["files"]["one"] == union
        assert one["files"]["same"] == saved[worker]
        assert one["files"]["every"] == saved[worker]


def test_a_bad_gradient_of_one_worker_moves_nothing_on_any(saw):
    last = len(saw) - 1
    for one in saw:
        assert f"From worker {last} (" in one["bad"], one["bad"]
        assert "The gradient of table 'bad' is not finite" in one["bad"]
        assert one["kept"]
        assert one["next"]


def test_rows_are_read_and_written_from_every_worker(saw):
    for worker, one in enumerate(saw):
        read = one["read"]
        assert read["rows"] == [
            [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]],
            [[-1.0, -1.0]] * 4,
        ]
        assert read["local"] == read["rows"][0]
        assert read["there"] == [[True] * 4, [False] * 4]
        assert read["item"] == [1.0, 1.0]
        assert read["in"] == [True, False]
        keys = [10 * w + i for w in range(len(saw)) for i in range(2)]
        mine = [key for key in keys if key % len(saw) == worker]
        assert (read["keys"], read["size"]) == (mine, len(mine))
        assert one["removed"][0] == [False, True, True, False]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("own", "Table 'own' is not shared by the"),
        ("outside", "train it by strategy.run of that strategy"),
        ("twice", "Table 'plain' is not shared by the"),
        ("norm", "`clipnorm` and `global_clipnorm` limit norms over the rows"),
        ("accum", "`accum` does not work for 'plain'"),
        ("strings", "Table 's' has strings, which workers"),
        ("save", "save_to_file_system"),
        ("differs", "All workers must make the same tables"),
    ],
)
def test_what_workers_cannot_share_is_refused_in_words(saw, call, words):
    for one in saw:
        assert words in one["refused"][call]
