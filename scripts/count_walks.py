#!/usr/bin/env python
"""Counts what a call passes through: modules of tfembed, and calls in them.

    scripts/count_walks            prints a table
    scripts/count_walks --calls    and each call, by module

`cold` is the first call of its kind for an object, `warm` a later one.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tfembed
from tfembed import dynamic_embedding as de

PACKAGE = pathlib.Path(tfembed.__file__).parent


class Walk:
    """The calls of tfembed's Python functions while a block runs."""

    def __init__(self) -> None:
        self.calls: collections.Counter[tuple[str, str]] = collections.Counter()

    def __enter__(self) -> Walk:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            module = str(pathlib.Path(path).relative_to(PACKAGE))
            self.calls[module, frame.f_code.co_name] += 1

    @property
    def keras_files(self) -> set[str]:
        """The modules among them that only models of Keras need."""
        return {
            module
            for module in self.files
            if "keras" in pathlib.Path(module).parts
        }

    @property
    def files(self) -> set[str]:
        """The modules that the calls lie in."""
        return {module for module, _ in self.calls}

    def __add__(self, other: Walk) -> Walk:
        both = Walk()
        both.calls = self.calls + other.calls
        return both


def _walked(call: Callable[[], Any]) -> tuple[Any, Walk]:
    with Walk() as walk:
        result = call()
    return result, walk


def embedding_walks() -> dict[str, Walk]:
    """The calls of an eager step of `TPUEmbedding`, the first and a later one."""
    users = tfembed.TableConfig(vocabulary_size=None, dim=4, name="users")
    embedding = tfembed.TPUEmbedding(
        {
            "user": tfembed.FeatureConfig(table=users),
        },
        optimizer=tfembed.optimizers.Adagrad(0.1),
    )
    ids = {
        "user": tf.constant([1, 2, 1], tf.int64),
    }
    embedding.build(per_replica_batch_size=3)
    walks: dict[str, Walk] = {}

    def step(stage: str) -> None:
        walks[f"enqueue, {stage}"] = _walked(lambda: embedding.enqueue(ids))[1]
        rows, walk = _walked(embedding.dequeue)
        walks[f"dequeue, {stage}"] = walk
        gradients = tf.nest.map_structure(tf.ones_like, rows)
        walks[f"apply_gradients, {stage}"] = _walked(
            lambda: embedding.apply_gradients(gradients)
        )[1]

    step("cold")
    for _ in range(12):
        step("warm")
    for stage in ("cold", "warm"):
        parts = [walk for name, walk in walks.items() if stage in name]
        walks[f"step, {stage}"] = parts[0] + parts[1] + parts[2]
    return walks


def variable_walks() -> dict[str, Walk]:
    """The calls of lookups in a `Variable`, and of its optimizer."""
    table = de.get_variable("walked", dim=4)
    ids = tf.constant([1, 2, 1], tf.int64)
    walks = {
        "Variable.upsert": _walked(lambda: table.upsert(ids, tf.ones([3, 4])))[
            1
        ]
    }
    for name, inner in (
        ("rule", tfembed.optimizers.Adagrad(0.1)),
        ("Keras Adagrad", tf.keras.optimizers.Adagrad(0.1)),
        ("Keras RMSprop", tf.keras.optimizers.RMSprop(0.1)),
    ):
        table = de.get_variable(f"walked_{name.replace(' ', '_')}", dim=4)
        optimizer = de.DynamicEmbeddingOptimizer(inner)
        with tf.GradientTape() as tape:
            rows, walk = _walked(
                lambda: de.embedding_lookup(table, ids, name="rows")
            )
            walks["embedding_lookup"] = walk
            loss = tf.reduce_sum(rows**2)
        pairs = [(tape.gradient(loss, table), table)]
        walks[f"apply_gradients, {name}"] = _walked(
            lambda: optimizer.apply_gradients(pairs)
        )[1]
    return walks


def keras_walks() -> dict[str, Walk]:
    """The calls of an eager step of each Keras layer, the first and a later."""
    ids = tf.constant([1, 2, 1], tf.int64)
    users = tfembed.TableConfig(vocabulary_size=None, dim=4, name="users")
    walks: dict[str, Walk] = {}
    for layer in (
        tfembed.keras.layers.Embedding(
            4, key_dtype="int64", name="walked_rows"
        ),
        tfembed.keras.layers.DistributedEmbedding(
            {"user": tfembed.FeatureConfig(table=users)}, name="walked_features"
        ),
    ):
        kind = type(layer).__name__
        optimizer = tf.keras.optimizers.Adagrad(0.1)
        inputs = ids if kind == "Embedding" else {"user": ids}

        def step(
            layer: Any = layer,
            optimizer: Any = optimizer,
            inputs: Any = inputs,
        ) -> None:
            with tf.GradientTape() as tape:
                rows = tf.nest.flatten(layer(inputs))[0]
                loss = tf.reduce_sum(rows**2)
            weights = layer.trainable_weights
            gradients = tape.gradient(loss, weights)
            optimizer.apply_gradients(zip(gradients, weights, strict=True))

        walks[f"{kind}, cold"] = _walked(step)[1]
        for _ in range(3):
            walks[f"{kind}, warm"] = _walked(step)[1]
    return walks


def lookup_walks() -> dict[str, Walk]:
    """The calls of a lookup outside of models, without and under a tape."""
    table = de.get_variable("walked_alone", dim=4)
    ids = tf.constant([1, 2, 1], tf.int64)
    walks: dict[str, Walk] = {}
    for stage in ("cold", "warm"):
        walks[f"lookup outside of models, {stage}"] = _walked(
            lambda: de.embedding_lookup(table, ids, name="rows")
        )[1]
        with tf.GradientTape():
            walks[f"lookup under a tape, {stage}"] = _walked(
                lambda: de.embedding_lookup(table, ids, name="rows")
            )[1]

    def deep(calls: int) -> Walk:
        if calls:
            return deep(calls - 1)
        return _walked(lambda: de.embedding_lookup(table, ids, name="rows"))[1]

    with tf.GradientTape():
        walks["lookup under a tape, 200 calls deep"] = deep(200)
    return walks


def main() -> None:
    """Prints files and calls of each walk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", action="store_true")
    arguments = parser.parse_args()
    print(f"{'walk':36} files calls Keras' files")
    walks = {
        **embedding_walks(),
        **variable_walks(),
        **keras_walks(),
        **lookup_walks(),
    }
    for name, walk in walks.items():
        calls = sum(walk.calls.values())
        counts = (len(walk.files), calls, len(walk.keras_files))
        print(f"{name:36} {counts[0]:5} {counts[1]:5} {counts[2]:5}")
        if arguments.calls:
            for (module, function), count in sorted(walk.calls.items()):
                print(f"    {module:48} {function:32} {count:3}")


if __name__ == "__main__":
    main()
