"""Variables and the raw files that hold their rows."""

from __future__ import annotations

import numpy as np

import tfembed.dynamic_embedding as de

KEYS = "fs_mht_1of1_rank0_size1-keys"
VALUES = "fs_mht_1of1_rank0_size1-values"


def variable(shards=1, dim=2, name="fs", **options):
    devices = ["/CPU:0"] * shards
    return de.Variable(dim=dim, devices=devices, name=name, **options)


def filled(shards=1, num_keys=5, **options):
    v = variable(shards, **options)
    v.upsert(range(num_keys), rows(range(num_keys)))
    return v


def rows(keys):
    return [[k, k + 0.5] for k in keys]


def contents(v):
    keys, values = (x.numpy() for x in v.export())
    return {int(k): row.tolist() for k, row in zip(keys, values, strict=True)}


def write_pair(folder, keys, values, stem="fs_mht_1of1_rank0_size1"):
    """Writes files as another program does: arrays without any header."""
    np.asarray(keys, "<i8").tofile(folder / f"{stem}-keys")
    np.asarray(values, "<f4").tofile(folder / f"{stem}-values")
