"""The flags that the examples on MovieLens have in common."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

__all__ = ["parser_of"]


def parser_of(
    description: str, data: pathlib.Path, options: type[Any]
) -> argparse.ArgumentParser:
    """A parser of --data, --epochs, --dim and --seed.

    Args:
      description: of the program, for --help.
      data: the default of --data.
      options: has the defaults of the model's.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        default=data,
        help="MovieLens' ratings: u.data of its 100K set, or a .inter file of "
        "RecBole's",
    )
    parser.add_argument(
        "--epochs",
        type=_positive,
        default=options.epochs,
        help="passes over the training data",
    )
    parser.add_argument(
        "--dim",
        type=_positive,
        default=options.dim,
        help="floats in a row of the tables",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the initial rows and the order"
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least 1; got {text!r}"
        )
    return int(text)
