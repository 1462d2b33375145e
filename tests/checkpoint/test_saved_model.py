"""tf.saved_model.save and load of modules that look hash tables up."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
from saved_models import assert_same_content, content, trained_model
from tfembed import optimizers
from tfembed.initializers import RowInitializer
from tfembed.tables import HashTable

DIM = 3
KEYS = np.array([3, -500, 499, 10**12], np.int64)


class Scorer(tf.Module):
    """Scores keys by their rows and a variable."""

    def __init__(self, table: HashTable) -> None:
        super().__init__()
        self.table = table
        self.weights = tf.Variable(tf.range(1.0, DIM + 1.0))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "keys")])
    def __call__(self, keys):
        return tf.linalg.matvec(self.table.lookup(keys)[0], self.weights)


def scorer(num_shards=1, **options) -> Scorer:
    options = {
        "initializer": RowInitializer("uniform", (-1.0, 1.0)),
        "optimizer": optimizers.Adagrad(0.1),
        **options,
    }
    return Scorer(trained_model(num_shards=num_shards, **options).table)


def export(module, directory) -> str:
    path = str(directory / "model")
    tf.saved_model.save(module, path, signatures=module.__call__)
    return path


def by_sevens(keys, num_shards):
    return (keys // 7) % num_shards


def test_a_fresh_process_predicts_the_same(tmp_path):
    modules = [
        scorer(1),
        scorer(3),
        scorer(3, partitioner=by_sevens),
        scorer(2, optimizer=None),
    ]
    paths = [
        export(module, tmp_path / str(i)) for i, module in enumerate(modules)
    ]

    fresh_process.output_of(
        """
        import sys
        import numpy as np
        import tensorflow as tf
        import tfembed

        predictions = []
        for path in sys.argv[2:]:
            model = tf.saved_model.load(path)
            keys = tf.constant([3, -500, 499, 10**12], tf.int64)
            by_signature = model.signatures["serving_default"](keys=keys)
            predictions.append(by_signature["output_0"].numpy())
            np.testing.assert_array_equal(predictions[-1], model(keys))
            assert int(model.table.size()) == 1000
        np.save(sys.argv[1], predictions)
        """,
        tmp_path / "predictions.npy",
        *paths,
    )

    for module, got in zip(
        modules, np.load(tmp_path / "predictions.npy"), strict=True
    ):
        np.testing.assert_allclose(got, module(KEYS), rtol=1e-6, atol=1e-6)


def test_tensorflows_session_loader_predicts_the_same(tmp_path):
    """As TensorFlow Serving loads: the graph, its init and restore ops."""
    module = scorer(2, partitioner=by_sevens)
    path = export(module, tmp_path)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], path)
        signature = meta_graph.signature_def["serving_default"]
        (output,) = signature.outputs.values()
        (given,) = signature.inputs.values()
        first, again = (
            session.run(output.name, {given.name: KEYS}) for _ in range(2)
        )

    np.testing.assert_allclose(first, module(KEYS), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(first, again)


def test_without_tfembed_the_error_names_the_missing_op(tmp_path):
    path = export(scorer(), tmp_path)

    output = fresh_process.output_of(
        """
        import sys
        import tensorflow as tf

        try:
            tf.saved_model.load(sys.argv[1])
        except Exception as error:
            print(error)
        """,
        path,
    )

    assert "Tfembed>Table" in output
    assert "not registered" in output


def test_two_loads_have_tables_of_their_own(tmp_path):
    module = scorer()
    path = export(module, tmp_path)
    first, second = tf.saved_model.load(path), tf.saved_model.load(path)

    first.table.clear()
    module.table.upsert(KEYS[:1], np.zeros([1, DIM]))

    assert int(second.table.size()) == 1000
    assert not np.allclose(second(KEYS)[0], module(KEYS)[0])
    assert second.table.lookup(KEYS[:3])[1].numpy().all()


def test_a_loaded_table_has_values_and_no_slots(tmp_path):
    module = scorer(2)

    loaded = tf.saved_model.load(export(module, tmp_path))

    saved = content(module.table)
    del saved["accumulators"]
    assert_same_content(content(loaded.table), saved)
    assert loaded.table.stats().row_bytes < module.table.stats().row_bytes


def test_a_loaded_model_is_saved_again(tmp_path):
    module = scorer(2, partitioner=by_sevens)
    loaded = tf.saved_model.load(export(module, tmp_path))
    loaded.table.upsert([4], np.ones([1, DIM]))

    tf.saved_model.save(loaded, str(tmp_path / "again"))
    again = tf.saved_model.load(str(tmp_path / "again"))

    assert_same_content(content(again.table), content(loaded.table))
    np.testing.assert_array_equal(again(KEYS), module(KEYS))


def test_a_loaded_model_takes_a_checkpoint_of_its_training(tmp_path):
    module = scorer()
    loaded = tf.saved_model.load(export(module, tmp_path))
    module.table.upsert([4], np.ones([1, DIM]))
    path = tf.train.Checkpoint(table=module.table).write(str(tmp_path / "ckpt"))

    tf.train.Checkpoint(table=loaded.table).read(path).assert_consumed()

    np.testing.assert_array_equal(
        loaded.table.lookup([4])[0], np.ones([1, DIM])
    )


def test_a_damaged_saved_model_is_refused(tmp_path):
    path = export(scorer(), tmp_path)
    files = (tmp_path / "model" / "variables").glob("variables.data-*")
    file = max(files, key=lambda p: p.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(tf.errors.DataLossError, match="'user'.*damaged"):
        tf.saved_model.load(path)


def test_static_tables_are_served_by_tensorflow_alone(tmp_path):
    class Static(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = tf.Variable(tf.random.normal([100, DIM]))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "keys")])
        def __call__(self, keys):
            return tf.nn.embedding_lookup(self.table, keys)

    module = Static()
    path = export(module, tmp_path)

    output = fresh_process.output_of(
        """
        import sys
        import tensorflow as tf

        model = tf.saved_model.load(sys.argv[1])
        print(model(tf.constant([7], tf.int64)).numpy().tolist())
        assert "tfembed" not in sys.modules
        """,
        path,
    )

    assert output.strip() == str(module(KEYS[:1] + 4).numpy().tolist())
