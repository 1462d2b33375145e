"""Click-through rates: 13 integers, 26 columns of strings, one AUC.

    python ctr.py                  # drawn clicks, whose best AUC is known
    python ctr.py --data 'day_0'   # Criteo's logs: a path or a glob

One layer looks all 26 columns up. A string gets a row when it has come twice
(`admission=2`), so that the tail of the logs costs nothing. The best epoch's rows
and weights come back together; the model is saved, and a loaded one predicts the
same.
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
from tfembed.data.criteo import CATEGORY_NAMES, NUM_CATEGORIES, NUM_INTEGERS
from tfembed.errors import DataError

VOCABULARY = 100  # Strings of a column that is drawn.


def drawn_clicks(count: int, batch_size: int, seed: int):
    """Draws clicks in the form of Criteo's; returns batches, and the best AUC.

    The log-odds are a sum of what each string and each integer says.
    """
    truth = np.random.default_rng(seed)
    effects = truth.normal(scale=0.4, size=(NUM_CATEGORIES, VOCABULARY))
    slopes = truth.normal(scale=0.1, size=NUM_INTEGERS)
    drawn = np.random.default_rng(seed + count)
    # The string of rank r comes about every r-th time: Zipf's law.
    ranks = VOCABULARY ** drawn.uniform(size=(count, NUM_CATEGORIES))
    ids = ranks.astype(np.int64) - 1
    integers = drawn.poisson(3.0, size=(count, NUM_INTEGERS))
    odds = effects[np.arange(NUM_CATEGORIES), ids].sum(1)
    odds += (np.log1p(integers) * slopes).sum(1) - 1.0
    chances = 1 / (1 + np.exp(-odds))
    labels = (drawn.uniform(size=count) < chances).astype(np.float32)
    best = keras.metrics.AUC()
    best.update_state(labels, chances)
    strings = dict(zip(CATEGORY_NAMES, ids.T.astype(str).astype(object)))
    features = {"integers": integers.astype(np.float64), **strings}
    batches = tf.data.Dataset.from_tensor_slices((features, labels))
    return batches.batch(batch_size), float(best.result())


def build(dim: int) -> keras.Model:
    """The ids' rows beside the integers' logs, through two dense layers."""
    ids = {
        name: keras.Input((), dtype="string", name=name)
        for name in CATEGORY_NAMES
    }
    integers = keras.Input((NUM_INTEGERS,), name="integers")
    features = {
        name: tfembed.FeatureConfig(
            tfembed.TableConfig(
                vocabulary_size=None,
                dim=dim,
                key_dtype="string",
                admission=2,
                name=name,
            )
        )
        for name in CATEGORY_NAMES
    }
    layer = tfembed.keras.layers.DistributedEmbedding(
        features, tfembed.Adagrad(0.2)
    )
    numbers = keras.ops.nan_to_num(integers)
    numbers = keras.ops.sign(numbers) * keras.ops.log1p(keras.ops.abs(numbers))
    x = keras.layers.Concatenate()([numbers, *layer(ids).values()])
    for units in (128, 64):
        x = keras.layers.Dense(units, activation="relu")(x)
    click = keras.layers.Dense(1, activation="sigmoid")(x)
    return keras.Model({"integers": integers, **ids}, click[:, 0])


def main(arguments: list[str] | None = None) -> int:
    """Runs the program; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="Criteo's logs: a path or a glob")
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--examples", type=int, default=40_000, help="drawn")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    keras.utils.set_random_seed(given.seed)
    size, best_auc = given.batch_size, None
    try:
        if given.data is None:
            clicks, _ = drawn_clicks(given.examples, size, given.seed)
            held_out, best_auc = drawn_clicks(5_000, size, given.seed)
        else:
            every = tfembed.data.criteo(given.data, size)
            held_out, clicks = every.take(40), every.skip(40)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    model = build(given.dim)
    auc = [keras.metrics.AUC(name="auc")]
    model.compile("adam", "binary_crossentropy", metrics=auc, jit_compile=False)
    best = keras.callbacks.EarlyStopping(
        "val_auc", mode="max", patience=1, restore_best_weights=True
    )
    model.fit(
        clicks,
        validation_data=held_out,
        epochs=given.epochs,
        callbacks=[best],
        shuffle=False,
        verbose=2,
    )
    _, reached = model.evaluate(held_out, verbose=0)
    print(f"\nAUC of the best epoch: {reached:.4f}")
    if best_auc is not None:
        print(f"AUC of the truth:      {best_auc:.4f}")
    report = tfembed.health(model)
    rows = sum(table.rows for table in report)
    size = sum(table.total_bytes for table in report)
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
