"""The program `tfembed`, which `pip install` puts beside Python.

The package `tfembed` imports TensorFlow, which takes seconds and which looking into
a file does not need. So its modules are imported here from a bare package, whose
`__init__` is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

__all__ = ["main"]


def main() -> int:
    """Runs the command line; returns the exit status."""
    if "tfembed" not in sys.modules:
        found = importlib.util.find_spec("tfembed")
        assert found is not None and found.submodule_search_locations
        package = types.ModuleType("tfembed")
        package.__path__ = list(found.submodule_search_locations)
        sys.modules["tfembed"] = package
    status: int = importlib.import_module("tfembed.__main__").main()
    return status
