"""tensorflow-io reads training data from Parquet for tfembed's tables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed

pytest.importorskip(
    "tensorflow_io", reason="tensorflow-io is installed under 2.16 only"
)
parquet = pytest.importorskip("pyarrow.parquet")
pyarrow = pytest.importorskip("pyarrow")

NUM_ROWS = 1000


@pytest.fixture(scope="module")
def clicks(tmp_path_factory) -> str:
    """Writes a Parquet file of user ids and labels."""
    users = np.arange(NUM_ROWS, dtype=np.int64) % 37 - 5
    labels = (users % 2).astype(np.float32)
    path = str(tmp_path_factory.mktemp("parquet") / "clicks.parquet")
    table = pyarrow.table({"user": users, "label": labels})
    parquet.write_table(table, path, row_group_size=300)
    return path


def test_a_table_is_trained_on_ids_that_tensorflow_io_reads(clicks):
    import tensorflow_io as tfio

    columns = {"user": tf.int64, "label": tf.float32}
    dataset = tfio.IODataset.from_parquet(
        clicks, columns={k: tf.TensorSpec([], v) for k, v in columns.items()}
    )
    table = tfembed.dynamic_embedding.Variable(dim=1, name="users")
    num_read = 0
    for batch in dataset.batch(100):
        table.upsert(batch["user"], batch["label"][:, tf.newaxis])
        num_read += len(batch["user"])
    rows = table.lookup(tf.constant([-5, -4, 31], tf.int64))

    assert num_read == NUM_ROWS
    assert int(table.size()) == 37
    np.testing.assert_array_equal(rows, [[1.0], [0.0], [1.0]])
