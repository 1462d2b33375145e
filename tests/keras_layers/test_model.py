"""`tfembed.keras.Model` without a cluster: tests/clusters has the others."""

from __future__ import annotations

import pathlib
import sys

import keras
import numpy as np
import pytest

import tfembed
from tfembed.keras import Model

ROOM = str(pathlib.Path(tfembed.__file__).parent)
IDS = np.arange(8).reshape(-1, 1) % 4


def functional(cls=Model):
    ids = keras.Input((1,), dtype="int64")
    rows = keras.layers.Flatten()(keras.layers.Embedding(4, 2)(ids))
    return cls(ids, keras.layers.Dense(1)(rows))


class Subclassed(Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(keras.ops.cast(ids, "float32"))


class Inside(Model):
    """Functional by its own constructor."""

    def __init__(self, width=2):
        ids = keras.Input((1,))
        super().__init__(ids, keras.layers.Dense(width)(ids))


def files_run(function):
    """The files of tfembed whose functions ran."""
    files = set()

    def note(frame, event, argument):
        if frame.f_code.co_filename.startswith(ROOM):
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return files


@pytest.mark.parametrize("make", [functional, Subclassed])
def test_fit_runs_no_code_of_ours(make):
    model = make()
    model.compile("sgd", "mse")

    ran = files_run(lambda: model.fit(IDS, IDS, verbose=0))

    assert ran == set()


@pytest.mark.parametrize("make", [functional, Subclassed, Inside])
def test_a_model_is_one_of_its_class(make):
    model = make()

    assert isinstance(model, Model if make is functional else make)
    assert isinstance(model, keras.Model)
    assert (Model in type(model).__mro__) and Model.__bases__ == (keras.Model,)


def test_a_functional_model_is_saved_loaded_and_cloned(tmp_path):
    model = functional()
    model.save(tmp_path / "m.keras")

    loaded = keras.saving.load_model(tmp_path / "m.keras")

    assert isinstance(loaded, Model)
    assert isinstance(keras.models.clone_model(model), Model)
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    assert (
        loaded.get_config().keys()
        == functional(keras.Model).get_config().keys()
    )
