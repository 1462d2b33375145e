"""The section on Keras 3 of docs/dynamic_embedding_keras.md."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import documents


def test_the_documents_example_runs(tmp_path):
    page = ("dynamic_embedding_keras.md", "Layers for Keras 3")
    program = documents.program(*page)
    names: dict = {}

    exec(program.replace("/tmp/", f"{tmp_path}/"), names)

    ids = [tf.constant(names["ids"][name]) for name in ("user", "genre")]
    np.testing.assert_allclose(
        names["served"].serve(ids),
        names["model"].predict(names["ids"], verbose=0),
        rtol=1e-5,
    )
