"""Names of what TensorFlow Recommenders Addons does over Horovod."""

from __future__ import annotations

from typing import Any

from tfembed import errors

__all__ = ["DEHvdBroadcastGlobalVariablesCallback", "HvdAllToAllEmbedding"]


class HvdAllToAllEmbedding:
    """Not in this release: ids dealt to Horovod's workers.

    Raises:
      tfembed.errors.UnsupportedError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(
            "HvdAllToAllEmbedding (Horovod) is not in this release; use "
            "Embedding, whose table may have several `devices`."
        )


class DEHvdBroadcastGlobalVariablesCallback:
    """Not in this release: Horovod's broadcast.

    Raises:
      tfembed.errors.UnsupportedError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise errors.UnsupportedError(
            "DEHvdBroadcastGlobalVariablesCallback (Horovod) is not in this "
            "release; leave it out where one process trains."
        )
