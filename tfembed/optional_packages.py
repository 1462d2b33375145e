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
      tfembed.errors.UnsupportedError: the package is not installed, or cannot
        be imported.
    """
    try:
        return importlib.import_module(package)
    except Exception as error:  # Packages for TensorFlow raise its errors, too.
        advice = (
            "is not installed and which tfembed does not install by itself. "
            f"Run: pip install {package}"
        )
        if getattr(error, "name", None) != package:
            advice = (
                f"cannot be imported here ({type(error).__name__}: {error}). "
                "Install a version that fits your Python and TensorFlow."
            )
        raise errors.UnsupportedError(
            f"{purpose} needs {package}, which {advice}"
        ) from error
