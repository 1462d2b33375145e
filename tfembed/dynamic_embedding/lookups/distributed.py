"""TFRA's names of lookups over several processes or replicas."""

from __future__ import annotations

from typing import Any

from tfembed import errors

__all__ = ["DistributedVariableWrapper", "HvdVariable"]


class HvdVariable:
    """Not in this release: ids dealt to Horovod's workers.

    Raises:
      tfembed.errors.UnsupportedError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(
            "HvdVariable needs Horovod, which this release does not use. Look "
            "up through the ShadowVariable itself; its table may have several "
            "`devices`."
        )


class DistributedVariableWrapper:
    """Not in this release: a shadow for each replica of a strategy.

    Raises:
      tfembed.errors.UnsupportedError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(
            "DistributedVariableWrapper is not in this release: dynamic "
            "variables do not run on several replicas. Use a ShadowVariable on "
            "one, or tfembed.TPUEmbedding under a strategy."
        )
