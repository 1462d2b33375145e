"""Variables with a shadow."""

from __future__ import annotations

import tensorflow as tf

import tfembed.dynamic_embedding as de

shadow_ops = de.shadow_ops


def shadowed(shards=1, *, initializer=0.0, dim=2, **options):
    v = de.Variable(
        dim=dim, devices=["/CPU:0"] * shards, initializer=initializer
    )
    return v, shadow_ops.ShadowVariable(v, **options)


def keys(*values):
    return tf.constant(values, tf.int64)


def contents(v):
    found, rows = (x.numpy() for x in v.export())
    return {int(k): row.tolist() for k, row in zip(found, rows, strict=True)}
