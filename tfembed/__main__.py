"""`python -m tfembed`: the command line of tfembed."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from tfembed.inspection import command
from tfembed.inspection.answers import as_json

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: the arguments; None: the process's own.

    Returns:
      The exit status.
    """
    return command.main(arguments, commands=[_add_export])


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="make a SavedModel that needs TensorFlow alone",
        description="Converts a SavedModel to one of TensorFlow's ops alone, as "
        "tfembed.export.to_stock does.",
    )
    export.add_argument("source", help="the folder of a SavedModel")
    export.add_argument("target", help="the folder to write")
    export.add_argument(
        "--rows",
        default="as_trained",
        help="as_trained, float32, bfloat16 or int8 (as_trained)",
    )
    export.add_argument(
        "--most-error",
        type=float,
        metavar="ERROR",
        help="the largest difference of a number of a row that is allowed",
    )
    export.add_argument(
        "--check",
        metavar="FILE.npz",
        help="inputs of a signature by name: both models answer them, and the "
        "outputs are compared",
    )
    export.add_argument(
        "--tags",
        help="the tags of the graph to convert, as serve or serve,gpu, where "
        "the SavedModel has several graphs",
    )
    export.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    # TensorFlow takes seconds to import, and `inspect` needs none of it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    export: Any = importlib.import_module("tfembed.export")
    report = export.to_stock(
        options.source,
        options.target,
        rows=options.rows,
        most_error=options.most_error,
        check=options.check,
        tags=options.tags and options.tags.split(","),
    )
    answer = dataclasses.asdict(report)
    sys.stdout.write(f"{as_json(answer) if options.json else report}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
