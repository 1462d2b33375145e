"""Imports of packages that only some calls of tfembed need."""

from __future__ import annotations

import importlib
from typing import Any

from tfembed import errors

__all__ = ["optional"]


def optional(package: str, purpose: str) -> Any:
    """Imports a package that tfembed does not depend on.

    Args:
      package: the module's name, which is also its distribution's name.
      purpose: the call or task that needs the package, as the error begins; a
        call in backticks.

    Raises:
      tfembed.errors.UnsupportedError: the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise errors.UnsupportedError(
            f"{purpose} needs {package}, which is not installed and which "
            f"tfembed does not install by itself. Run: pip install {package}"
        ) from error
