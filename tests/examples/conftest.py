"""Lets the tests import the examples, which are programs and no package."""

from __future__ import annotations

import pathlib
import sys

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

for folder in (str(EXAMPLES), str(EXAMPLES / "models")):
    if folder not in sys.path:
        sys.path.insert(0, folder)
