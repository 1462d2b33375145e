"""Scores requests with an exported model, as a server would: this file knows
nothing of how the model was made.

    python score.py EXPORT_DIR REQUESTS.npz PREDICTIONS.npy
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import tfembed  # noqa: F401 - the tables' ops.


def main(export_dir: str, requests: str, predictions: str) -> None:
    """Reads integers [n, 13] and categories [n, 26]; writes predictions [n]."""
    columns = np.load(requests)
    serve = tf.saved_model.load(export_dir).signatures["serving_default"]
    answer = serve(
        integers=tf.constant(columns["integers"]),
        categories=tf.constant(columns["categories"].astype(object)),
    )
    np.save(predictions, answer["probabilities"].numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
