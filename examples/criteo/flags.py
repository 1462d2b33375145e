"""The demo's flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags; prints what is wrong and exits with 2 if something is."""
    parser = argparse.ArgumentParser(
        prog="criteo_dlrm.py",
        description="Trains a DLRM on click logs and serves it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_data_flags(parser.add_argument_group("data"))
    _add_training_flags(parser.add_argument_group("training"))
    _add_output_flags(parser.add_argument_group("output"))
    return parser.parse_args(arguments)


def _add_data_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data",
        help="path or glob of click logs; without, a planted stream is drawn",
    )
    group.add_argument(
        "--skip_bad_lines",
        action="store_true",
        help="count lines that cannot be read instead of stopping at them",
    )
    group.add_argument(
        "--holdout",
        type=_holdout,
        default=10,
        metavar="N",
        help="keep every Nth line of a log for the evaluation; 0: none",
    )
    group.add_argument(
        "--epochs",
        type=_at_least(1),
        help="passes over the logs; default: 1, or 20 for less than 1 MB",
    )
    group.add_argument(
        "--examples",
        type=_at_least(1),
        help="stop after so many; default: 2,000,000 of the planted stream, "
        "all of a log",
    )
    group.add_argument(
        "--evaluation_examples",
        type=_at_least(1),
        default=200_000,
        help="evaluate about so many at most",
    )


def _add_training_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch_size",
        type=_at_least(1),
        help="default: 4096, or 32 for logs of less than 1 MB",
    )
    group.add_argument(
        "--seed",
        type=_at_least(0),
        default=0,
        help="of the model and of the planted stream",
    )
    group.add_argument(
        "--freeze_embeddings",
        action="store_true",
        help="train the dense part alone, to see what the tables are worth",
    )


def _add_output_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--checkpoint_dir",
        help="where to save, and to go on from; default: a temporary one",
    )
    group.add_argument(
        "--checkpoint_every",
        type=_at_least(1),
        default=250,
        metavar="STEPS",
        help="save each time so many steps are done",
    )
    group.add_argument(
        "--export_dir",
        help="where to keep the SavedModel; default: a temporary one",
    )


def _holdout(text: str) -> int:
    value = _at_least(0)(text)
    if value == 1:
        raise argparse.ArgumentTypeError(
            "1 holds out every line and leaves none to train on; give 0 or at "
            "least 2"
        )
    return value


_holdout.__name__ = "integer"


def _at_least(least: int):
    def convert(text: str) -> int:
        value = int(text.replace("_", "").replace(",", ""))
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    convert.__name__ = f"integer of at least {least}"
    return convert
