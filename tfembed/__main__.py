"""`python -m tfembed`: the command line of tfembed."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from tfembed import errors
from tfembed.cluster import launcher
from tfembed.inspection import command
from tfembed.inspection.answers import as_json
from tfembed.saved.written_file import written_file

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: the arguments; None: the process's own.

    Returns:
      The exit status.
    """
    return command.main(
        arguments, commands=[_add_example, _add_export, _add_launch]
    )


def _add_example(commands: Any) -> None:
    example = commands.add_parser(
        "example",
        help="print a program that trains and serves a model",
        description="Lists programs of one file, each of which trains, "
        "evaluates and serves a model, or prints one.",
    )
    example.add_argument("name", nargs="?", help="the program to print")
    example.add_argument("--to", metavar="FILE", help="write it to a new file")
    example.set_defaults(run=_example)


def _example(options: argparse.Namespace) -> int:
    package = pathlib.Path(__file__).parent
    folders = package / "examples", package.parent / "examples" / "models"
    paths = {one.stem: one for folder in folders for one in folder.glob("*.py")}
    texts = {name: paths[name].read_text("utf-8") for name in sorted(paths)}
    about = {
        name: (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        for name, text in texts.items()
    }
    name = options.name
    if name not in texts and (name is not None or options.to is not None):
        raise errors.ArgumentError(
            f"Name a program, one of {', '.join(texts)}; got {name or 'none'}."
        )
    if options.to is not None:
        with written_file(options.to, replaces=False) as path:
            path.write_text(texts[name], "utf-8")
        answer = {"name": name, "path": options.to}
        shown = f"{options.to} is written: python {options.to}\n"
    elif name is not None:
        answer, shown = {"name": name, "program": texts[name]}, texts[name]
    else:
        programs = [{"name": n, "about": about[n]} for n in texts]
        answer = {"programs": programs}
        lines = [f"{n:<20}  {about[n]}\n" for n in texts]
        shown = "".join(
            [*lines, "\ntfembed example NAME --to FILE writes one.\n"]
        )
    sys.stdout.write(f"{as_json(answer)}\n" if options.json else shown)
    return 0


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
    export.add_argument(
        "--live",
        action="store_true",
        help="add the signature tfembed_update, which takes changed rows in "
        "while the model serves",
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
        live=options.live,
    )
    answer = dataclasses.asdict(report)
    sys.stdout.write(f"{as_json(answer) if options.json else report}\n")
    return 0


def _add_launch(commands: Any) -> None:
    launch = commands.add_parser(
        "launch",
        help="run a program as a cluster of processes",
        description="Starts a program once for each task of a cluster, which it "
        "learns by TF_CONFIG: workers, and with --servers a chief and parameter "
        "servers too. Each line of output begins with its task. Once the chief "
        "has ended, or all workers without one, the others are stopped.",
    )
    launch.add_argument("--workers", type=int, default=1, metavar="N")
    launch.add_argument("--servers", type=int, default=0, metavar="N")
    launch.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often all tasks are started again after one has died (0)",
    )
    launch.add_argument(
        "--hosts",
        default="",
        metavar="HOST:PORT,...",
        help="the address of each task of a cluster of several machines, the "
        "chief's first, the servers' last; --task says which is this machine",
    )
    launch.add_argument(
        "--task", type=int, metavar="I", help="the place among --hosts, from 0"
    )
    launch.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long tasks have to end once they are told to (10)",
    )
    launch.add_argument("program", help="a .py file, or another program's path")
    launch.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the program"
    )
    launch.set_defaults(run=_launch)


def _launch(options: argparse.Namespace) -> int:
    if options.json:
        raise errors.ArgumentError(
            "`--json` shows an answer; `launch` prints the lines of its tasks. "
            "Leave it out."
        )
    return launcher.launch(
        launcher.Launch(
            (options.program, *options.arguments),
            workers=options.workers,
            servers=options.servers,
            restarts=options.restarts,
            hosts=tuple(filter(None, options.hosts.split(","))),
            task=options.task,
            grace=options.grace,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
