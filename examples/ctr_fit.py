"""Click-through rates by `fit`: 13 integers, 26 columns of strings, one AUC.

    python examples/ctr_fit.py                           # drawn clicks
    python examples/ctr_fit.py --data 'day_0' --steps 0  # Criteo's logs

One layer looks all 26 columns up. A string gets a row when it has come twice
(`admission=2`), so that the tail of the logs costs nothing. The best epoch's rows
and weights come back together, and the model that is saved serves.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tfembed
from tfembed.data.criteo import CATEGORY_NAMES, NUM_INTEGERS
from tfembed.errors import DataError


def planted_clicks(batch_size: int, steps: int, first: int) -> tf.data.Dataset:
    """Draws clicks in the form of Criteo's, with a truth that can be learned."""
    from criteo.planted import PlantedStream

    stream = PlantedStream()

    def draw():
        for step in range(steps):
            drawn = stream.draw(first + step * batch_size, batch_size)
            strings = stream.strings[drawn.ids].astype(object)
            features = dict(zip(CATEGORY_NAMES, strings.T))
            yield {"integers": drawn.integers, **features}, drawn.labels

    columns = {
        name: tf.TensorSpec([None], tf.string) for name in CATEGORY_NAMES
    }
    columns["integers"] = tf.TensorSpec([None, NUM_INTEGERS], tf.float32)
    clicks = tf.data.Dataset.from_generator(
        draw, output_signature=(columns, tf.TensorSpec([None], tf.float32))
    )
    # So that fit knows how many batches an epoch has.
    return clicks.apply(
        tf.data.experimental.assert_cardinality(steps)
    ).prefetch(2)


def build(dim: int) -> keras.Model:
    """The ids' rows beside the integers' logs, through two dense layers."""
    ids = {
        name: keras.Input((), dtype="string", name=name)
        for name in CATEGORY_NAMES
    }
    integers = keras.Input((NUM_INTEGERS,), name="integers")
    tables = {
        name: tfembed.TableConfig(
            vocabulary_size=None,
            dim=dim,
            key_dtype=tf.string,
            admission=2,
            name=name,
        )
        for name in CATEGORY_NAMES
    }
    layer = tfembed.keras.layers.DistributedEmbedding(
        {name: tfembed.FeatureConfig(table=t) for name, t in tables.items()},
        tfembed.Adagrad(0.05),
    )
    numbers = keras.ops.nan_to_num(integers)
    numbers = keras.ops.sign(numbers) * keras.ops.log1p(keras.ops.abs(numbers))
    x = keras.layers.Concatenate()([numbers, *layer(ids).values()])
    for units in (128, 64):
        x = keras.layers.Dense(units, activation="relu")(x)
    click = keras.layers.Dense(1, activation="sigmoid")(x)
    return keras.Model({"integers": integers, **ids}, click[:, 0])


def main(arguments: list[str] | None = None) -> int:
    """Runs the example; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="Criteo's logs: a path or a glob")
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument(
        "--steps", type=int, default=150, help="an epoch; 0: all"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    keras.utils.set_random_seed(given.seed)
    try:
        if given.data is None:
            steps = given.steps or 1000
            clicks = planted_clicks(given.batch_size, steps, 0)
            held_out = planted_clicks(given.batch_size, 20, 1 << 40)
        else:
            every = tfembed.data.criteo(given.data, given.batch_size)
            held_out, clicks = every.take(20), every.skip(20)
            clicks = clicks.take(given.steps) if given.steps else clicks
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    model = build(given.dim)
    model.compile(
        "adam",
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
        jit_compile=False,
    )
    best = keras.callbacks.EarlyStopping(
        "val_auc", mode="max", patience=1, restore_best_weights=True
    )
    model.fit(
        clicks,
        validation_data=held_out,
        epochs=given.epochs,
        callbacks=[best],
        verbose=2,
    )
    _, auc = model.evaluate(held_out, verbose=0)
    print(f"\nAUC of the best epoch: {auc:.4f}")
    report = tfembed.health(model)
    rows, size = (
        sum(getattr(table, name) for table in report)
        for name in ("rows", "total_bytes")
    )
    print(f"{len(report)} tables of {rows:,} rows in {size / 2**20:.1f} MB")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "clicks.keras"
        model.save(path)
        loaded = keras.saving.load_model(path)
        ((features, _),) = held_out.take(1)
        np.testing.assert_allclose(
            loaded.predict(features, verbose=0),
            model.predict(features, verbose=0),
            rtol=1e-5,
        )
        size = path.stat().st_size
    print(f"saved, loaded, and it predicts the same: {size / 2**20:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
