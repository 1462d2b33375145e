"""Models that are saved, and how they must go on."""

from __future__ import annotations

from keras_models import batches, model_of


def trained(optimizer=None, **options):
    model = model_of(optimizer, **options)
    model.fit(batches(), epochs=2, verbose=0)
    return model
