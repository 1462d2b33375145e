"""The engines that tfembed has, and whether they were built."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["engine_class", "missing"]

# Loaded when they are needed: a program without TPUs pays for none of them.
_CLASSES = {
    "host": ("tfembed.embedding.host.engine", "HostEngine"),
    "tpu_host": ("tfembed.embedding.tpu.host_engine", "TpuHostEngine"),
    "tpu_xla": ("tfembed.embedding.xla.sharded_engine", "XlaShardedEngine"),
    "xla": ("tfembed.embedding.xla.engine", "XlaEngine"),
    "tpu": ("tfembed.embedding.tpu.engine", "TpuEngine"),
}


def missing(engine: str) -> str | None:
    """Why an engine is not there, as a sentence; None where it is."""
    module, _ = _CLASSES[engine]
    why = getattr(importlib.import_module(module), "why_missing", None)
    return None if why is None else why()


def engine_class(engine: str) -> Any:
    """The class of an engine that is there."""
    module, name = _CLASSES[engine]
    return getattr(importlib.import_module(module), name)
