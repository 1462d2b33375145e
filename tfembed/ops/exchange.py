"""Lookups and updates of tables in device memory, sharded over replicas.

Tables of one width and update rule are stacked: concatenated in the rows of one
variable per replica. `table_rows` has the number of rows of each table on a
replica. The calls are pure functions of tensors, for functions that XLA
compiles, with all replicas in one program.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from tfembed import errors, optimizers
from tfembed.ops import library

__all__ = [
    "Exchange",
    "Found",
    "Updated",
    "default_buffer",
    "lookup",
    "shard_rows",
    "sum_gradients",
    "update",
    "why_missing",
]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The replicas of an exchange, and the size of a round.

    Attributes:
      replicas: the number of replicas that share the rows.
      buffer: the most distinct ids that a replica sends to each other replica
        in a round. More rounds follow if that is not enough.
      portable: whether the program must run without this library. If not, a
        single replica's update on a CPU is a call into it, which is faster.

    Raises:
      tfembed.errors.ArgumentError: a number below 1.
    """

    replicas: int
    buffer: int
    portable: bool = False

    def __post_init__(self) -> None:
        for name in ("replicas", "buffer"):
            if getattr(self, name) < 1:
                raise errors.ArgumentError(
                    f"`{name}` must be at least 1; got {getattr(self, name)}."
                )

    @classmethod
    def for_ids(
        cls, replicas: int, ids: int, *, portable: bool = False
    ) -> Exchange:
        """Makes an exchange that sends `ids` ids of a replica in a round."""
        return cls(replicas, default_buffer(replicas, ids), portable)


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """The result of a lookup.

    Attributes:
      rows: float32 [n, width], zeros where there is no id.
      rounds: int32 scalar, the same on all replicas.
    """

    rows: tf.Tensor
    rounds: tf.Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Updated:
    """The result of an update.

    Attributes:
      values: float32 [rows, width].
      slots: float32 [rows, width] each, or [rows, 1].
      rounds: int32 scalar, the same on all replicas.
      nonfinite_rows: int32 [tables], of this replica's rows.
    """

    values: tf.Tensor
    slots: list[tf.Tensor]
    rounds: tf.Tensor
    nonfinite_rows: tf.Tensor


def why_missing() -> str:
    """Says why XLA kernels are missing, and what to do; "" if they are not."""
    return library.load_xla()


def default_buffer(replicas: int, ids: int) -> int:
    """Returns a buffer that `ids` ids with random owners rarely overflow.

    It is the mean plus four standard deviations, rounded up to a multiple of 8,
    but at most `ids` (for one replica the mean alone).
    """
    mean = ids / replicas
    enough = mean if replicas == 1 else mean + 4 * math.sqrt(mean)
    return max(1, min(ids, 8 * math.ceil(enough / 8)))


def shard_rows(vocabulary: int, replicas: int) -> int:
    """Returns the rows of a table on each replica, including unused rows."""
    return -(-vocabulary // replicas)


def lookup(shard: tf.Tensor, ids: tf.Tensor, exchange: Exchange) -> Found:
    """Looks up rows that are sharded over all replicas.

    Args:
      shard: float32 [rows, width], this replica's: row r is that of id
        r * replicas + replica.
      ids: int32 [n] of the stack; ids outside of [0, replicas * rows) have no
        row.
      exchange: the same on all replicas.

    Raises:
      tfembed.errors.UnsupportedError: the XLA kernels are missing.
    """
    rows, rounds = library.load_for_xla().tfembed_exchange_lookup(
        shard, ids, replicas=exchange.replicas, buffer=exchange.buffer
    )
    return Found(rows, rounds)


def update(
    values: tf.Tensor,
    slots: Sequence[tf.Tensor],
    ids: tf.Tensor,
    gradients: tf.Tensor,
    learning_rate: tf.Tensor | float,
    exchange: Exchange,
    *,
    rule: str,
    table_rows: Sequence[int],
    nonfinite: str = "skip",
) -> Updated:
    """Updates rows on all replicas, each once by its summed gradient.

    Args:
      values: float32 [rows, width], this replica's.
      slots: the slots in the rule's order.
      ids: int32 [n], as for `lookup`.
      gradients: float32 [n, width].
      learning_rate: scalar.
      exchange: the same on all replicas.
      rule: an optimizer's `rule_text()`.
      table_rows: `shard_rows` of each table of the stack.
      nonfinite: the treatment of a row whose sum has a NaN or an infinity:
        "skip" or "allow".

    Raises:
      tfembed.errors.UnsupportedError: the XLA kernels are missing.
    """
    result = library.load_for_xla().tfembed_exchange_update(
        values,
        list(slots),
        ids,
        gradients,
        tf.cast(learning_rate, tf.float32),
        rule=rule,
        table_rows=list(table_rows),
        replicas=exchange.replicas,
        buffer=exchange.buffer,
        nonfinite=nonfinite,
        **({"portable": True} if exchange.portable else {}),
    )
    return Updated(
        result.updated_values,
        list(result.updated_slots),
        result.rounds,
        result.nonfinite_rows,
    )


def sum_gradients(
    ids: tf.Tensor, gradients: tf.Tensor, rows: int, exchange: Exchange
) -> Found:
    """Returns the summed gradient of each of this replica's rows.

    It is the transpose of `lookup`: all replicas send their gradients of an id
    to the owner of its row.

    Args:
      ids: int32 [n], as for `lookup`.
      gradients: float32 [n, width].
      rows: the rows of this replica.
      exchange: the same on all replicas.

    Returns:
      [rows, width], zeros for rows without a gradient; not finite if a gradient
      is not. And the rounds of the exchange.

    Raises:
      tfembed.errors.UnsupportedError: the XLA kernels are missing.
    """
    # An SGD update, w - rate * g, with w = 0 and rate = -1 is the exact sum.
    summed = update(
        tf.zeros([rows, gradients.shape[1]]),
        (),
        ids,
        gradients,
        -1.0,
        exchange,
        rule=optimizers.SGD().rule_text(),
        table_rows=[rows],
        nonfinite="allow",
    )
    return Found(summed.values, summed.rounds)


# The callers define gradients; these ops have none.
tf.no_gradient("Tfembed>ExchangeLookup")
tf.no_gradient("Tfembed>ExchangeUpdate")
