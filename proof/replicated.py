"""The same steps with the tables whole on every chip, to compare with.

    lookup    each chip gathers from its own copy
    update    ids and gradients are gathered from all chips; each chip adds them
              up by row and moves its copy

Plain JAX: no exchange, no sharding, no tricks. Adagrad and SGD, and a DLRM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from proof.programs import LEARNING_RATE, Lowered

__all__ = ["has_replicated", "replicated_program"]

_AXIS = "chip"
_RULES = ("", "SGD", "Adagrad")


def has_replicated(lowered: Lowered) -> bool:
    """Whether there is such a version of a program."""
    return lowered.program.rule in _RULES and not lowered.program.taped


def replicated_program(lowered: Lowered, devices: list[Any]) -> Any:
    """The compiled version of a program, one replica per device."""
    p = lowered.program
    mesh = Mesh(np.array(devices), (_AXIS,))
    n = len(devices)
    rows = sum(p.vocabularies)
    state = [(rows, p.width)] * (2 if p.rule == "Adagrad" else 1)
    for inputs, outputs in p.layers():
        state += [(inputs, outputs), (outputs,)]
    shapes: list[tuple[tuple[int, ...], Any]] = [
        ((p.batch * n, len(p.features) * p.length), jnp.int32)
    ]
    if p.weighted:
        shapes.append((shapes[0][0], jnp.float32))
    if p.is_dlrm:
        shapes += [
            ((p.batch * n, p.dense), jnp.float32),
            ((p.batch * n,), jnp.float32),
        ]
    elif p.rule:
        places = () if p.combiner else (p.length,)
        shape = (p.batch * n, len(p.features), *places, p.width)
        shapes.append((shape, jnp.float32))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(_AXIS))
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole)
        for shape in state
    ] + [
        jax.ShapeDtypeStruct(shape, dtype, sharding=split)
        for shape, dtype in shapes
    ]
    kept = len(state) if p.rule else 0
    step = jax.shard_map(
        _step(lowered, len(state)),
        mesh=mesh,
        in_specs=(P(),) * len(state) + (P(_AXIS),) * len(shapes),
        out_specs=(P(),) * kept + (P(_AXIS),),
        check_vma=False,
    )
    return (
        jax.jit(step, donate_argnums=tuple(range(kept)))
        .lower(*arguments)
        .compile()
    )


def _step(lowered: Lowered, state: int) -> Callable[..., Any]:
    p = lowered.program

    def run(*inputs: Any) -> tuple[Any, ...]:
        table, rest = inputs[0], list(inputs[state:])
        ids = rest.pop(0).reshape(p.batch, len(p.features), p.length)
        there = (ids >= 0).astype(jnp.float32)
        firsts = np.cumsum([0, *p.vocabularies])[list(p.features)]
        places = jnp.maximum(ids, 0) + jnp.asarray(firsts)[:, None]
        factors = there
        if p.weighted:
            factors = there * rest.pop(0).reshape(ids.shape)
            norm = {
                "mean": factors.sum(-1, keepdims=True),
                "sqrtn": jnp.sqrt((factors**2).sum(-1, keepdims=True)),
            }.get(p.combiner, 1.0)
            factors = jnp.where(factors > 0, factors / norm, 0.0)
        activations = table[places] * factors[..., None]
        if p.combiner:
            activations = activations.sum(2)
        if not p.rule:
            return (activations,)
        if p.is_dlrm:
            dense = inputs[2 if p.rule == "Adagrad" else 1 : state]
            result, slopes, dense = _model(p, activations, dense, *rest)
        else:
            result, slopes, dense = activations, activations - rest[0], ()
        if p.combiner:
            slopes = slopes[:, :, None]
        slopes = (slopes * factors[..., None]).reshape(-1, p.width)
        all_ids = jax.lax.all_gather(places.reshape(-1), _AXIS, tiled=True)
        all_slopes = jax.lax.all_gather(slopes, _AXIS, tiled=True)
        if p.rule == "SGD":
            table = table.at[all_ids].add(-LEARNING_RATE * all_slopes)
            return (table, *dense, result)
        summed = jnp.zeros_like(table).at[all_ids].add(all_slopes)
        accumulators = inputs[1] + summed**2
        table = table - LEARNING_RATE * summed / jnp.sqrt(accumulators)
        return (table, accumulators, *dense, result)

    return run


def _model(
    p: Any, activations: Any, dense_state: Any, dense: Any, labels: Any
) -> tuple[Any, Any, list[Any]]:
    def loss_of(activations: Any, dense_state: Any) -> tuple[Any, Any]:
        layers = list(zip(dense_state[::2], dense_state[1::2], strict=True))
        split = len(p.bottom) + 1
        x = dense
        for weight, bias in layers[:split]:
            x = jax.nn.relu(x @ weight + bias)
        vectors = jnp.concatenate([x[:, None], activations], 1)
        products = vectors @ vectors.transpose(0, 2, 1)
        rows, columns = np.tril_indices(len(p.features) + 1, -1)
        y = jnp.concatenate([x, products[:, rows, columns]], 1)
        for i, (weight, bias) in enumerate(layers[split:]):
            y = y @ weight + bias
            if i < len(layers) - split - 1:
                y = jax.nn.relu(y)
        logits = y[:, 0]
        losses = jnp.logaddexp(0.0, logits) - labels * logits
        count = p.batch * jax.lax.axis_size(_AXIS)
        return losses.sum() / count, logits

    (_, logits), (slopes, of_dense) = jax.value_and_grad(
        loss_of, (0, 1), has_aux=True
    )(activations, list(dense_state))
    new = [
        value - LEARNING_RATE * jax.lax.psum(gradient, _AXIS)
        for value, gradient in zip(dense_state, of_dense, strict=True)
    ]
    return logits, slopes, new
