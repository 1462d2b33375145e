"""The steps a long process repeats, and TensorFlow's way of each.

Each function makes what is needed once and returns one repetition, which gets a
number that no other one gets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfembed
import tfembed.dynamic_embedding as de
from benchmarks.soak import growth, models
from tfembed import optimizers, policies

Repeat = Callable[[int], object]

v1 = tf.compat.v1
IDS = tf.constant([1, 2, 3, 2], tf.int64)
ROWS = tf.ones([4, 8])


@dataclasses.dataclass(frozen=True)
class Kind:
    """One thing that is repeated.

    Attributes:
      make: gives a repetition.
      stock: the same with TensorFlow alone, where that keeps memory by itself.
      cost: how many cheap steps take about as long.
      fewest: repetitions in a round.
      bytes_each: what a repetition may leave for good.
    """

    make: Callable[[], Repeat]
    stock: Callable[[], Repeat] | None = None
    cost: int = 1
    fewest: int = 25
    bytes_each: int = growth.BYTES_A_REPETITION


def variable(name: str = "soak", **options: Any) -> de.Variable:
    made = de.Variable(dim=8, name=name, **options)
    made.upsert(IDS, ROWS)
    return made


def train(optimizer: Any, source: Any, look_up: Callable[[], Any]) -> None:
    """One eager step."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(look_up() ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, source), source)])


def steps() -> Repeat:
    table = variable()
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.Adagrad(0.1))
    return lambda i: train(
        optimizer, table, lambda: de.embedding_lookup(table, IDS, name="rows")
    )


def steps_of_new_numbers() -> Repeat:
    """Each has another learning rate, and others than the last another size."""
    table = variable()
    rates = iter(1 / (100 + n) for n in range(10**9))
    optimizer = de.DynamicEmbeddingOptimizer(
        optimizers.Adagrad(lambda: next(rates))
    )

    def repeat(i: int) -> None:
        ids = tf.constant(np.arange(1 + i % 97))
        train(
            optimizer,
            table,
            lambda: de.embedding_lookup(table, ids, name="rows"),
        )

    return repeat


def lookups_by_new_names() -> Repeat:
    table = variable()
    sparse = tf.SparseTensor([[0, 0], [1, 0], [1, 1], [2, 0]], IDS, [3, 2])

    def repeat(i: int) -> None:
        de.embedding_lookup(table, IDS, name=f"dense{i:09}")
        de.embedding_lookup_unique(table, IDS, name=f"unique{i:09}")
        de.embedding_lookup_sparse(table, sparse, None, name=f"sparse{i:09}")

    return repeat


def trainables_by_new_names() -> Repeat:
    table = variable()

    def repeat(i: int) -> None:
        de.embedding_lookup(table, IDS, name=f"n{i:09}", return_trainable=True)

    return repeat


def trained_by_new_names() -> Repeat:
    table = variable()
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.Adam(0.1))

    def repeat(i: int) -> None:
        with tf.GradientTape() as tape:
            rows, wrapper = table.embedding_lookup(
                IDS, name=f"n{i:09}", return_trainable=True
            )
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, wrapper), wrapper)])

    return repeat


def shadows() -> Repeat:
    table = variable()
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.Adagrad(0.1))

    def repeat(i: int) -> None:
        shadow = de.shadow_ops.ShadowVariable(table, name=f"shadow{i:09}")
        train(optimizer, shadow, lambda: shadow.embedding_lookup(IDS))

    return repeat


def tables(**options: Any) -> Callable[[], Repeat]:
    """Variables by new names, that are filled and dropped."""

    def repeat(i: int) -> None:
        table = variable(f"table{i:09}", **options)
        table.lookup(IDS)
        table.remove(IDS)

    return lambda: repeat


def string_tables() -> Repeat:
    words = tf.constant([["a"], ["b"], ["c"], ["b"]])

    def repeat(i: int) -> None:
        table = de.Variable(
            value_dtype=tf.string, dim=1, name=f"table{i:09}", initializer=""
        )
        table.upsert(IDS, words)
        table.lookup(IDS)

    return repeat


def hash_tables() -> Repeat:
    def repeat(i: int) -> None:
        table = tfembed.HashTable(8, name=f"table{i:09}", init_size=100)
        table.upsert(IDS, ROWS)
        table.lookup(IDS)
        table.clear()

    return repeat


def optimizers_of_ours() -> Repeat:
    def repeat(i: int) -> None:
        table = variable(f"table{i:09}")
        optimizer = de.DynamicEmbeddingOptimizer(optimizers.Adam(0.1))
        train(
            optimizer,
            table,
            lambda: de.embedding_lookup(table, IDS, name="rows"),
        )

    return repeat


def optimizers_of_keras() -> Repeat:
    def repeat(i: int) -> None:
        table = variable(f"table{i:09}")
        optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
        train(
            optimizer,
            table,
            lambda: de.embedding_lookup(table, IDS, name="rows"),
        )

    return repeat


def stock_optimizers() -> Repeat:
    def repeat(i: int) -> None:
        table = tf.Variable(tf.ones([4, 8]), name=f"table{i:09}")
        train(
            keras.optimizers.Adam(0.1), table, lambda: tf.gather(table, IDS % 4)
        )

    return repeat


def config(
    name: str, *, grows: bool = False, configs: Any = tfembed
) -> dict[str, Any]:
    vocabulary: dict[str, Any] = {"vocabulary_size": None if grows else 50}
    table = configs.TableConfig(
        **vocabulary, dim=8, combiner="sum", name=f"table{name}"
    )
    return {"ids": configs.FeatureConfig(table)}


def step(embedding: tfembed.TPUEmbedding, name: str | None = None) -> None:
    embedding.enqueue({"ids": IDS}, name=name)
    activations = embedding.dequeue(name=name)
    embedding.apply_gradients(activations, name=name)


def embedding_steps(*, new_names: bool) -> Callable[[], Repeat]:
    def make() -> Repeat:
        embedding = tfembed.TPUEmbedding(config("0"), tfembed.Adagrad(0.1))
        return lambda i: step(embedding, f"step{i:09}" if new_names else None)

    return make


def embedding_steps_of_new_rates() -> Repeat:
    rates = iter(1 / (100 + n) for n in range(10**9))
    embedding = tfembed.TPUEmbedding(
        config("0"), tfembed.Adagrad(lambda: next(rates))
    )
    return lambda i: step(embedding)


def embeddings(*, grows: bool) -> Callable[[], Repeat]:
    def repeat(i: int) -> None:
        name = f"{i:09}" if grows else "0"
        step(
            tfembed.TPUEmbedding(
                config(name, grows=grows), tfembed.Adagrad(0.1)
            )
        )

    return lambda: repeat


def embeddings_by_new_names() -> Repeat:
    return lambda i: step(
        tfembed.TPUEmbedding(config(f"{i:09}"), tfembed.Adagrad(0.1))
    )


def stock_embeddings_by_new_names() -> Repeat:
    """TensorFlow's variables by new names, as many as an embedding has.

    An embedding of one name, which keeps nothing, is made beside them: malloc
    hands out a little more for each of them where others come and go.
    """
    same = embeddings(grows=False)()

    def repeat(i: int) -> None:
        same(i)
        for name in ("", "/accumulators"):
            tf.Variable(tf.ones([50, 8]), name=f"table{i:09}{name}")

    return repeat


def embeddings_v0() -> Repeat:
    def repeat(i: int) -> None:
        embedding = tfembed.TPUEmbeddingV0(config("0"), tfembed.Adagrad(0.1))
        embedding({"ids": IDS})

    return repeat


def servings() -> Repeat:
    def repeat(i: int) -> None:
        serving = tfembed.TPUEmbeddingForServing(
            config("0"), tfembed.Adagrad(0.1)
        )
        serving({"ids": IDS})

    return repeat


def layers() -> Repeat:
    def repeat(i: int) -> None:
        layer = de.keras.layers.Embedding(8, name=f"layer{i:09}")
        layer(IDS)
        squashed = de.keras.layers.SquashedEmbedding(8, name=f"other{i:09}")
        squashed(tf.reshape(IDS, [2, 2]))

    return repeat


def stock_layers() -> Repeat:
    def repeat(i: int) -> None:
        for name in ("layer", "other"):
            keras.layers.Embedding(50, 8, name=f"{name}{i:09}")(IDS)

    return repeat


def distributed_layers() -> Repeat:
    def repeat(i: int) -> None:
        layer = tfembed.keras.layers.DistributedEmbedding(
            config("0"), optimizer=tfembed.Adagrad(0.1), name="layer"
        )
        layer({"ids": IDS})

    return repeat


def stock_distributed_layers() -> Repeat:
    def repeat(i: int) -> None:
        keras.layers.Embedding(50, 8, name="layer")(IDS)

    return repeat


def functions() -> Repeat:
    table = variable()

    def repeat(i: int) -> None:
        @tf.function
        def look_up(ids: tf.Tensor) -> tf.Tensor:
            return de.embedding_lookup(table, ids, name=f"rows{i:09}")

        look_up(IDS)

    return repeat


def stock_functions() -> Repeat:
    table = tf.Variable(ROWS)

    def repeat(i: int) -> None:
        @tf.function
        def look_up(ids: tf.Tensor) -> tf.Tensor:
            with tf.name_scope(f"rows{i:09}"):
                return tf.gather(table, ids % 4)

        look_up(IDS)

    return repeat


def checkpoints() -> Repeat:
    table = variable()
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.Adagrad(0.1))
    train(
        optimizer, table, lambda: de.embedding_lookup(table, IDS, name="rows")
    )
    return saved_and_restored(table=table, optimizer=optimizer)


def stock_checkpoints() -> Repeat:
    return saved_and_restored(
        table=tf.Variable(ROWS), optimizer=tf.Variable(1.0)
    )


def saved_and_restored(**objects: Any) -> Repeat:
    checkpoint = tf.train.Checkpoint(**objects)
    prefix = tempfile.mkdtemp() + "/checkpoint"
    return lambda i: checkpoint.restore(checkpoint.write(prefix))


def managed_checkpoints() -> Repeat:
    return managed(variable())


def stock_managed_checkpoints() -> Repeat:
    return managed(tf.Variable(ROWS))


def managed(table: Any) -> Repeat:
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(table=table), tempfile.mkdtemp(), max_to_keep=2
    )
    return lambda i: manager.save(i + 1_000_000)


def row_files() -> Repeat:
    table = variable()
    folder = tempfile.mkdtemp()

    def repeat(i: int) -> None:
        table.save_to_file_system(folder)
        table.load_from_file_system(folder)

    return repeat


class Served(tf.Module):
    """Looks rows up in what it has."""

    def __init__(self, look_up: Callable[[tf.Tensor], tf.Tensor], **has: Any):
        super().__init__()
        self.has = has
        self.look_up = look_up

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(self, ids: tf.Tensor) -> tf.Tensor:
        return self.look_up(ids)


def served() -> Served:
    table = variable()
    return Served(
        lambda ids: de.embedding_lookup(table, ids, name="rows"), table=table
    )


def stock_served() -> Served:
    table = tf.Variable(ROWS)
    return Served(lambda ids: tf.gather(table, ids % 4), table=table)


def requests() -> Repeat:
    folder = tempfile.mkdtemp()
    model = served()
    tf.saved_model.save(model, folder, signatures={"serve": model.serve})
    loaded = tf.saved_model.load(folder)
    serve = loaded.signatures["serve"]

    def repeat(i: int) -> None:
        ids = np.arange(1 + i % 97)
        serve(ids=tf.constant(ids))
        loaded.serve(tf.constant(ids))

    return repeat


def eager_requests() -> Repeat:
    configs = config("0")
    table = {configs["ids"].table: tf.ones([50, 8])}

    def repeat(i: int) -> None:
        n = 1 + i % 97
        ids = tf.constant(np.arange(n) % 50)
        tfembed.serving_embedding_lookup({"ids": ids}, None, table, configs)
        ragged = tf.RaggedTensor.from_row_lengths(ids, [n])
        tfembed.serving_embedding_lookup({"ids": ragged}, None, table, configs)

    return repeat


def saved_models(make: Callable[[], Served]) -> Callable[[], Repeat]:
    """Models that are saved, loaded, asked once and dropped."""

    def repeat(i: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            model = make()
            tf.saved_model.save(model, folder)
            loaded = tf.saved_model.load(folder)
            loaded.serve(IDS)  # Whose variables go with the model.

    return lambda: repeat


def graph(look_up: Callable[[int], tf.Tensor]) -> Callable[[], Repeat]:
    """Graphs of TensorFlow 1 that are made, trained in and dropped."""

    def repeat(i: int) -> None:
        with tf.Graph().as_default(), v1.Session() as session:
            loss = tf.reduce_sum(look_up(i) ** 2)
            optimizer = v1.train.AdagradOptimizer(0.1)
            if look_up is graph_rows:
                optimizer = de.DynamicEmbeddingOptimizer(optimizer)
            update = optimizer.minimize(loss)
            session.run(v1.global_variables_initializer())
            session.run(update)

    return lambda: repeat


def graph_rows(i: int) -> tf.Tensor:
    table = de.get_variable(f"table{i:09}", dim=8)
    return de.embedding_lookup(table, tf.constant([1, 2, 3], tf.int64))


def stock_graph_rows(i: int) -> tf.Tensor:
    table = v1.get_variable(f"table{i:09}", [4, 8], use_resource=True)
    return tf.gather(table, tf.constant([1, 2, 3], tf.int64))


def failures() -> Repeat:
    table = variable()
    embedding = tfembed.TPUEmbedding(config("0"), tfembed.Adagrad(0.1))
    step(embedding)
    calls = [
        lambda i: table.lookup(tf.constant([f"{i}"])),
        lambda i: table.upsert(IDS, tf.ones([4, 7])),
        lambda i: table.upsert(IDS, tf.ones([3, 8])),
        lambda i: de.embedding_lookup(table, IDS),
        lambda i: embedding.enqueue({"other": IDS}, name=f"step{i:09}"),
        lambda i: embedding.dequeue(name=f"step{i:09}"),
        lambda i: embedding.enqueue({"ids": [-7]}, name="bad"),
        lambda i: tfembed.HashTable(8, name=f"table{i:09}", init_size=10**12),
        lambda i: de.Variable(dim=-1, name=f"table{i:09}"),
        lambda i: table.load_from_file_system(f"/nowhere/{i:09}"),
        lambda i: tf.train.Checkpoint(table=table).restore(f"/no/{i:09}"),
    ]

    def repeat(i: int) -> None:
        for call in calls:
            with contextlib.suppress(Exception):
                call(i)
                # It went through: what is on its way is taken again.
                embedding.dequeue(name="bad")

    return repeat


def stock_failures() -> Repeat:
    """Eager ops that fail: TensorFlow keeps the list for results, the message.

    So many of ours reach an op, and their messages are as long.
    """

    def repeat(i: int) -> None:
        for characters in (400, 260, 220):
            path = f"/nowhere/{i:09}".ljust(characters - 200, "x")
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.raw_ops.RestoreV2(
                    prefix=path,
                    tensor_names=["rows"],
                    shape_and_slices=[""],
                    dtypes=[tf.float32],
                )

    return repeat


def evictions() -> Repeat:
    table = de.Variable(
        dim=8, name="soak", eviction=policies.LeastRecent(), max_size=5000
    )
    optimizer = de.DynamicEmbeddingOptimizer(optimizers.Adagrad(0.1))

    def repeat(i: int) -> None:
        ids = tf.constant(np.arange(i * 200, i * 200 + 200))
        train(
            optimizer,
            table,
            lambda: de.embedding_lookup(table, ids, name="rows"),
        )

    return repeat


def string_keys() -> Repeat:
    table = de.Variable(key_dtype=tf.string, dim=8, name="soak")

    def repeat(i: int) -> None:
        names = tf.constant([f"{i:09} a name of more than some bytes"] * 4)
        table.upsert(names, ROWS)
        table.lookup(names)
        table.remove(names)

    return repeat


def threads() -> Repeat:
    table = variable()

    def work() -> None:
        table.upsert(IDS, ROWS)
        de.embedding_lookup(table, IDS, name="rows")

    def repeat(i: int) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    return repeat


def stock_threads() -> Repeat:
    table = tf.Variable(ROWS)

    def work() -> None:
        table.assign(ROWS)
        tf.gather(table, IDS % 4)

    def repeat(i: int) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    return repeat


def datasets() -> Repeat:
    table = variable()

    def repeat(i: int) -> None:
        data = tf.data.Dataset.from_tensors(IDS).map(lambda x: table.lookup(x))
        for _ in data:
            pass

    return repeat


def stock_datasets() -> Repeat:
    table = tf.Variable(ROWS)

    def repeat(i: int) -> None:
        data = tf.data.Dataset.from_tensors(IDS).map(
            lambda ids: tf.gather(table, ids % 4)
        )
        for _ in data:
            pass

    return repeat


KINDS: dict[str, Kind] = {
    "steps": Kind(steps, cost=4),
    "steps of new numbers": Kind(steps_of_new_numbers, cost=8),
    "lookups by new names": Kind(lookups_by_new_names, cost=4),
    "trainables by new names": Kind(trainables_by_new_names, cost=2),
    "steps of trainables by new names": Kind(trained_by_new_names, cost=8),
    "shadows": Kind(shadows, cost=10),
    "variables": Kind(tables(), cost=6),
    "bounded variables": Kind(
        tables(max_size=100, eviction=policies.LeastRecent()), cost=6
    ),
    "sharded variables": Kind(tables(devices=["/CPU:0"] * 3), cost=12),
    "tables of strings": Kind(string_tables, cost=6),
    "hash tables": Kind(hash_tables, cost=6),
    "optimizers": Kind(optimizers_of_ours, cost=15),
    "Keras optimizers": Kind(optimizers_of_keras, stock_optimizers, cost=30),
    "embedding steps": Kind(embedding_steps(new_names=False), cost=4),
    "embedding steps of new rates": Kind(embedding_steps_of_new_rates, cost=20),
    "embedding steps by new names": Kind(
        embedding_steps(new_names=True), cost=20
    ),
    "embeddings": Kind(embeddings(grows=False), cost=40),
    "growing embeddings": Kind(embeddings(grows=True), cost=40),
    "embeddings by new names": Kind(
        embeddings_by_new_names, stock_embeddings_by_new_names, cost=40
    ),
    "V0 embeddings": Kind(embeddings_v0, cost=40),
    "embeddings for serving": Kind(servings, cost=40),
    "Keras layers": Kind(layers, stock_layers, cost=40),
    "distributed layers": Kind(
        distributed_layers, stock_distributed_layers, cost=60
    ),
    "functions": Kind(functions, stock_functions, cost=40),
    "checkpoints": Kind(checkpoints, stock_checkpoints, cost=60),
    "managed checkpoints": Kind(
        managed_checkpoints, stock_managed_checkpoints, cost=60
    ),
    "row files": Kind(row_files, cost=10),
    "requests": Kind(requests, cost=4),
    "eager requests": Kind(eager_requests, cost=20),
    "saved models": Kind(
        saved_models(served), saved_models(stock_served), cost=200
    ),
    "graphs": Kind(graph(graph_rows), graph(stock_graph_rows), cost=100),
    "failures": Kind(failures, stock_failures, cost=20),
    "evictions": Kind(evictions, cost=4),
    "keys that are strings": Kind(string_keys, cost=4),
    "threads": Kind(threads, stock_threads, cost=4),
    "datasets": Kind(datasets, stock_datasets, cost=60),
    # Twenty models leave less than 2 MB.
    **{
        name: Kind(
            models.dropped(run),
            stock and models.dropped(stock),
            cost=500,
            fewest=2,
            bytes_each=100_000,
        )
        for name, (run, stock) in models.MODELS.items()
    },
}
