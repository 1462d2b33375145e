"""Exports a model, and checks it in a fresh process."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf

from criteo import score
from criteo.click_model import ClickModel
from criteo.source import Chunk
from tfembed.data.criteo import NUM_CATEGORIES, NUM_INTEGERS


class ServingError(Exception):
    """The exported model could not be served."""


class ServedModel(tf.Module):
    """From raw integers and categories to probabilities; hashes inside."""

    def __init__(self, model: ClickModel) -> None:
        super().__init__()
        self._model = model

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, NUM_INTEGERS], tf.float32, "integers"),
            tf.TensorSpec([None, NUM_CATEGORIES], tf.string, "categories"),
        ]
    )
    def serve(
        self, integers: tf.Tensor, categories: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """As ClickModel.probabilities."""
        return {
            "probabilities": self._model.probabilities(integers, categories)
        }


def export(model: ClickModel, directory: str) -> None:
    """Writes a SavedModel with one signature, `serving_default`."""
    served = ServedModel(model)
    tf.saved_model.save(
        served, directory, signatures={"serving_default": served.serve}
    )


def largest_difference(
    model: ClickModel, directory: str, requests: Chunk
) -> float:
    """Between the predictions of `model` and of its export in a new process.

    Raises:
      ServingError: the new process failed; with its last lines.
    """
    integers = requests.integers.numpy()
    categories = requests.categories.numpy().T
    here = model.probabilities(tf.constant(integers), tf.constant(categories))
    with tempfile.TemporaryDirectory() as scratch:
        asked = pathlib.Path(scratch, "requests.npz")
        answered = pathlib.Path(scratch, "predictions.npy")
        np.savez(asked, integers=integers, categories=categories.astype(bytes))
        run = subprocess.run(
            [sys.executable, score.__file__, directory, asked, answered],
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise ServingError(
                f"{directory} could not be served by {score.__file__}:\n"
                + "\n".join(run.stderr.splitlines()[-8:])
            )
        there = np.load(answered)
    return float(np.abs(here.numpy() - there).max())
