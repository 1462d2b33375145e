"""Variables from int64 to float32, and what is in them."""

from __future__ import annotations

import numpy as np

import tfembed.dynamic_embedding as de


def variable(dim=1, default=-1.0, shards=1, **options):
    return de.Variable(
        dim=dim, initializer=default, devices=["/CPU:0"] * shards, **options
    )


def filled(dim=1, default=-1.0, shards=1, keys=range(4)):
    v = variable(dim, default, shards)
    keys = np.array(list(keys), np.int64)
    v.upsert(keys, np.repeat(keys[:, None], dim, 1).astype(np.float32))
    return v


def contents(v):
    keys, values = (x.numpy() for x in v.export())
    return {int(k): row.tolist() for k, row in zip(keys, values, strict=True)}
