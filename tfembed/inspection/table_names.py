"""The names by which people know tables."""

from __future__ import annotations

__all__ = ["NO_NAME", "table_name"]

# A `dynamic_embedding.Variable` that was given no name.
NO_NAME = "DynamicEmbedding_Variable"

# Layers of `dynamic_embedding` call their tables as TFRA's do.
_OF_LAYER = "-parameter"


def table_name(name: str) -> str:
    """The name by which people know a table.

    Args:
      name: of the table; that of a layer "users" has "users-parameter".
    """
    return name.removesuffix(_OF_LAYER) or name
