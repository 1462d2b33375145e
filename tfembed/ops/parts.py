"""Exchanges of bytes between the workers of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed.ops import library

__all__ = ["channel", "exchange"]


def channel(
    name: str, *, devices: Sequence[str], worker: int, seconds: float
) -> tf.Tensor:
    """Makes this worker's end of a channel; its last handle frees it.

    The handle orders the exchanges of a channel in a function. Exchanges of
    several channels run at the same time.

    Args:
      name: the channel's name, the same on all workers, and of no other
        channel.
      devices: a device of each worker.
      worker: the index of this worker.
      seconds: the seconds for which an exchange waits for the others.
    """
    return library.load().tfembed_exchange_channel(
        name, peers=list(devices), worker=worker, seconds=seconds
    )


def exchange(
    channel: Any,
    parts: Sequence[tf.Tensor],
    *,
    sizes: Any = None,
    error: Any = "",
) -> list[tf.Tensor]:
    """Sends a part to each worker, and returns theirs for this one.

    All workers must run the exchanges of a channel in the same order.

    Args:
      channel: the handle of a channel.
      parts: per worker uint8 or int8 [any size].
      sizes: int64 [workers], the sizes of what is received, where they are
        known; None: they are sent first.
      error: a text that is not empty fails this exchange on all workers.

    Raises:
      tf.errors.InvalidArgumentError: a worker told an error. Later exchanges
        work.
      tf.errors.UnavailableError: a worker is gone. Later exchanges fail too.
      tf.errors.DeadlineExceededError: a worker did not come in time. Later
        exchanges fail too.
    """
    received: list[tf.Tensor] = library.load().tfembed_exchange_parts(
        channel,
        list(parts),
        tf.zeros([0], tf.int64) if sizes is None else sizes,
        error,
        knows_sizes=sizes is not None,
    )
    return received


tf.no_gradient("Tfembed>ExchangeParts")
